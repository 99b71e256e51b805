"""The real service's metrics plus those that only a GPU has: a stand-in for a scrape on one."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.servers import get

# Everything that a service without a GPU does not export, with a value a GPU might show.
GPU_ONLY = {
    "mlp_gpu_peak_flops": 989.5e12,
    "mlp_gpu_utilization_ratio": 0.5,
    "mlp_gpu_memory_used_bytes": 2e10,
    "mlp_gpu_power_watts": 350.0,
    "mlp_gpu_sm_clock_hertz": 1.7e9,
}


def with_gpu(text: str) -> str:
    """A scrape with the missing series added, labelled as the service labels them on a GPU."""
    lines = [text.rstrip("\n")]
    for name, value in GPU_ONLY.items():
        assert f"\n{name}" not in text, f"the service exports {name} itself"
        labels = "" if name == "mlp_gpu_peak_flops" else '{gpu="0"}'
        lines += [f"# TYPE {name} gauge", f"{name}{labels} {value}"]
    return "\n".join(lines) + "\n"


class GpuExporter:
    """Answers each scrape with one of the service at `url`."""

    def __init__(self, url: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = get(url, "/metrics")
                answer = with_gpu(body.decode()).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> GpuExporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
