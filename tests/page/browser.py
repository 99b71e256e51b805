"""Headless Chromium for tests and the README's picture: Debian's, steered by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1280, "height": 900}

# Nothing that looks for other hosts or for a GPU.
_ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium_path() -> str | None:
    """Where Chromium is installed; None where it is not."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A running Chromium. No other event loop can run in this thread meanwhile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        yield browser
        browser.close()


class Watched:
    """A page, and what went wrong on it.

    Attributes:
        faults: Exceptions, and errors and warnings of the console: also violations of the
            policy. Not the console's remarks about answers with an error's status, which the
            page is there to show.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._console)

    def _console(self, message) -> None:
        answered = message.text.startswith("Failed to load resource: the server responded")
        if message.type in ("error", "warning") and not answered:
            self.faults.append(message.text)


def overflowing(page: Page) -> list[str]:
    """What is wider than the place it has, the window to begin with."""
    return page.evaluate(
        """() => [...document.querySelectorAll("html, main *, header *")]
            .filter((one) => one.clientWidth && getComputedStyle(one).display !== "inline")
            .filter((one) => !(one instanceof SVGElement) && one.tagName !== "TEXTAREA")
            .filter((one) => one.scrollWidth > one.clientWidth + 1)
            .map((one) => `${one.tagName}#${one.id}: ${one.textContent.trim().slice(0, 40)}`)"""
    )
