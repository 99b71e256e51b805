"""A page that is fed scrapes and a clock by the test."""

from __future__ import annotations

from service.errors import outcomes
from service.metrics import Metrics
from service.routes.page import FOLDER, assemble
from tests.page.browser import Watched
from tests.servers import wait_until

URL = "http://page.test/"


def config(*, layers: str = "3,7", hidden: int = 4) -> dict:
    """What the page reads of a model's configuration."""
    return {
        "input": [{"dims": [-1, hidden]}],
        "parameters": {"layers": {"string_value": layers}, "activation": {"string_value": "silu"}},
    }


def new_metrics(kernels: tuple[str, ...] = ("kernel1", "kernel2"), **options) -> Metrics:
    """The service's own registry, as a GPU with 1 TFLOP/s has it."""
    metrics = Metrics(
        outcomes=outcomes(),
        kernels=kernels,
        build={"version": "1", "backend": "fused", "device": "NVIDIA H200", "model": "m"},
        **{"peak_flops": 1e12, **options},
    )
    metrics.ready = metrics.healthy = 1
    for name in ("requests", "tokens", "bytes"):
        metrics.gauge(f"mlp_queue_{name}", "", lambda name=name: getattr(metrics, name, 0))
    metrics.gauge("mlp_ready", "", lambda: metrics.ready)
    metrics.gauge("mlp_engine_healthy", "", lambda: metrics.healthy)
    return metrics


def gpu_series(gpu: int, utilisation: float, nbytes: float, watts: float, hertz: float) -> str:
    """What NVML says of one GPU."""
    return (
        f'mlp_gpu_utilization_ratio{{gpu="{gpu}"}} {utilisation}\n'
        f'mlp_gpu_memory_used_bytes{{gpu="{gpu}"}} {nbytes}\n'
        f'mlp_gpu_power_watts{{gpu="{gpu}"}} {watts}\n'
        f'mlp_gpu_sm_clock_hertz{{gpu="{gpu}"}} {hertz}\n'
    )


def work(metrics, *, ok: int = 0, full: int = 0, seconds: float = 0.001) -> None:
    """Requests of one token, each a batch of its own."""
    for _ in range(ok):
        metrics.batch_started("idle", 1, 1)
        metrics.batch_succeeded(
            tokens=1,
            flops=10**10,
            busy_s=0.01,
            kernels=[("kernel2", 0.0005)],
            stages={"compute": 0.0005},
        )
        metrics.stage("queue", 0.0001)
        metrics.request_ended("mlp", "ok", seconds)
    for _ in range(full):
        metrics.request_ended("v2", "queue_full", 0.0)


class Scripted:
    """The page, open, with nothing but this test behind it.

    Attributes:
        metrics: What /metrics shows; the test counts in it.
        extra: Text that follows it.
        reason: What /health/ready says where it is asked.
        silent: Paths that are asked for and never answered.
        config, config_status: How the model's configuration is answered.
        down: Whether nobody answers.
        scrapes: How often /metrics was asked for.
    """

    def __init__(self, watched: Watched, metrics: Metrics | None = None) -> None:
        self.page = watched.page
        self.metrics = metrics or new_metrics()
        self.extra = self.reason = ""
        self.silent: set[str] = set()
        self.config, self.config_status = config(), 200
        self.down = False
        self.scrapes = 0
        self.page.route("**/*", self._answer)
        self.page.clock.install(time=0)
        self.page.clock.pause_at(1000)
        self.page.goto(URL)
        self.settle(0)

    def _answer(self, route) -> None:
        path = route.request.url.removeprefix(URL)
        if path == "":
            html, policy = assemble(FOLDER)
            headers = {"content-security-policy": policy, "content-type": "text/html"}
            route.fulfill(body=html, headers=headers)
        elif self.down:
            route.abort("connectionrefused")
        elif path in self.silent:
            pass
        elif path == "metrics":
            self.scrapes += 1
            route.fulfill(body=self.metrics.render().decode() + self.extra)
        elif path == "health/ready":
            route.fulfill(status=503, json={"ready": False, "error": self.reason})
        elif path == "v2/models/m/config":
            route.fulfill(status=self.config_status, json=self.config)
        else:
            raise AssertionError(f"the page asks for {path}")

    def tick(self, polls: int = 1) -> None:
        """Let 2 s pass, and with them one poll, as often as said."""
        for _ in range(polls):
            before = self.page.evaluate("timer")
            self.page.clock.run_for(2000)
            self.settle(before)

    def settle(self, before: int) -> None:
        """Until the page has shown what it asked for, and waits for the next time."""
        wait_until(lambda: self.page.evaluate("timer") != before, 10)

    def figure(self, name: str) -> str:
        """A single number, as shown."""
        return self.page.locator(f"[data-figure={name}]").first.inner_text()

    def table(self, name: str) -> list[list[str]]:
        """A table's rows, as shown."""
        rows = self.page.locator(f"#{name} tbody tr").all()
        return [[cell.strip() for cell in row.locator("th, td").all_inner_texts()] for row in rows]


def restart(page: Scripted, started: str) -> None:
    """Have the next scrape come from a process that started then."""
    page.extra = f"process_start_time_seconds {started}\n"


def layers(page: Scripted) -> list[str]:
    """What the form offers as layers."""
    return page.page.locator("#try [name=layer] option").all_inner_texts()
