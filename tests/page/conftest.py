"""One browser for all tests of the page; what each of them opens is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.page.browser import DESKTOP, Watched, chromium, chromium_path


# Not for the session: while it runs, other tests could have no event loop in this thread.
@pytest.fixture(scope="package")
def browser() -> Iterator:
    path = chromium_path()
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with chromium(path) as browser:
        yield browser


@pytest.fixture
def opened(browser) -> Iterator[Callable[..., Watched]]:
    """Make a page with options of a context; at the end, nothing has gone wrong on any."""
    contexts, pages = [], []

    def make(**options: object) -> Watched:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        contexts.append(context)
        pages.append(Watched(context))
        return pages[-1]

    yield make
    for context in contexts:
        context.close()
    assert [watched.faults for watched in pages if watched.faults] == []
