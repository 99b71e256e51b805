"""The README's picture of the page under load: `python -m tests.page.picture docs/page.png`."""

from __future__ import annotations

import http.client
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from tests.page.browser import DESKTOP, Watched, chromium, chromium_path
from tests.servers import ServerProcess

_LOAD_S = 75
_LOAD = f"--connections 6 --rows 1:0.6,16:0.3,128:0.1 --duration-s {_LOAD_S} --quiet"


def main(path: str) -> None:
    """Serve, put load on it, and take the picture before the load ends."""
    chromium_at = chromium_path()
    if chromium_at is None:
        sys.exit("Chromium is not installed (Debian: apt-get install chromium)")
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder) / "log") as server,
        chromium(chromium_at) as browser,
    ):
        context = browser.new_context(viewport=DESKTOP, color_scheme="light")
        page = Watched(context).page
        page.goto(server.url)
        command = [sys.executable, "-m", "service", "load", "--url", server.url, *_LOAD.split()]
        load = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(_LOAD_S - 10):
            page.wait_for_timeout(1000)
            refused_request(server.url)
        page.get_by_role("button", name="Send").click()
        page.locator("#answer-status:has-text('200')").wait_for()
        page.screenshot(path=path, full_page=True)
        context.close()
        load.wait()


def refused_request(url: str) -> None:
    """One for a layer that is not resident, for an outcome besides ok."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.request("POST", "/mlp?layer=99", b"")
    connection.getresponse().read()
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
