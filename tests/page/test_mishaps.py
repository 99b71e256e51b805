"""What the page does when the service is slow to answer or restarts, and the clock jumps."""

from __future__ import annotations

import pytest

from tests.page.scripted import Scripted, config, layers, restart, work
from tests.servers import wait_until


@pytest.fixture
def scripted(opened):
    def make() -> Scripted:
        page = Scripted(opened())
        # Which the polls do not wait for.
        wait_until(lambda: layers(page) == ["3", "7"], 10)
        return page

    return make


def test_a_service_that_does_not_say_why_is_still_asked_and_shown(scripted):
    page = scripted()
    status, reason = page.page.locator("#status"), page.page.locator("#reason")
    page.metrics.ready, page.silent = 0, {"health/ready"}
    work(page.metrics, ok=8)
    before = page.page.evaluate("timer")
    page.page.clock.run_for(2000)
    # Before the answer that never comes is given up, too.
    wait_until(lambda: status.inner_text() == "Not ready", 4)
    assert page.page.evaluate("asking")
    assert page.figure("requestsPerSecond") == "4/s"
    # The page's clock counts for what it gives up, too.
    page.page.clock.run_for(5000)
    page.settle(before)
    assert reason.inner_text().startswith("Why is not known: /health/ready: ")
    page.metrics.ready = 1
    page.tick()
    assert (status.inner_text(), reason.is_visible()) == ("Ready", False)


def test_the_reason_stays_while_it_is_asked_for_again(scripted):
    page = scripted()
    page.metrics.ready, page.reason = 0, "draining"
    page.tick()
    page.page.evaluate(
        """() => {
            window.reasons = [];
            const note = () => reasons.push(byId("reason").textContent);
            new MutationObserver(note).observe(byId("reason"), { childList: true });
        }"""
    )
    page.tick(2)
    assert page.page.evaluate("reasons") == []


@pytest.mark.parametrize("status", [404, 429, 503])
def test_a_configuration_that_was_refused_is_asked_for_again(scripted, status):
    page = scripted()
    page.config_status = status
    restart(page, "1")
    page.tick()
    wait_until(lambda: page.page.evaluate("defaultsOf") is None, 10)
    page.config_status, page.config = 200, config(layers="11")
    page.tick()
    wait_until(lambda: layers(page) == ["11"], 10)


def test_a_configuration_that_never_comes_is_asked_for_again(scripted):
    page = scripted()
    page.silent = {"v2/models/m/config"}
    restart(page, "1")
    page.tick()
    page.silent, page.config = set(), config(layers="11")
    page.tick()
    assert layers(page) == ["3", "7"], "the first answer is still waited for"
    page.tick(3)
    wait_until(lambda: layers(page) == ["11"], 10)


def test_without_a_key_the_configuration_is_not_asked_for_at_every_poll(scripted):
    page = scripted()
    page.config_status = 401
    restart(page, "1")
    page.tick()
    hint = page.page.locator("#key-hint")
    wait_until(hint.is_visible, 10)
    page.config_status, page.config = 200, config(layers="11")
    page.tick()
    assert hint.is_visible()
    page.page.get_by_label("API key").fill("key")
    page.page.get_by_label("API key").press("Tab")
    page.tick()
    wait_until(lambda: layers(page) == ["11"], 10)


def test_after_a_restart_the_form_has_the_new_layers_and_keeps_what_was_typed(scripted):
    page = scripted()
    page.page.get_by_label("Layer").select_option("7")
    page.page.get_by_label("Body").fill("my own")
    page.config = config(layers="5,7,9")
    page.tick()
    assert layers(page) == ["3", "7"], "asked once in the life of a service"
    restart(page, "1")
    page.tick()
    wait_until(lambda: layers(page) == ["5", "7", "9"], 10)
    assert page.page.get_by_label("Layer").input_value() == "7"
    assert page.page.get_by_label("Body").input_value() == "my own"
    page.config = config(layers="5", hidden=2)
    restart(page, "2")
    page.tick()
    wait_until(lambda: page.page.get_by_label("Body").input_value() != "my own", 10)


def test_what_was_counted_while_the_laptop_slept_is_over_that_time(scripted):
    page = scripted()
    page.tick()
    before = page.page.evaluate("performance.now()")
    page.page.clock.set_system_time(page.page.evaluate("Date.now() / 1e3") + 98)
    assert page.page.evaluate("performance.now()") == before
    work(page.metrics, ok=200)
    page.tick()
    assert page.figure("requestsPerSecond") == "2/s"


def test_a_clock_that_was_set_back_starts_over(scripted):
    page = scripted()
    work(page.metrics, ok=7)
    page.tick()
    page.page.clock.set_system_time(page.page.evaluate("Date.now() / 1e3") - 60)
    work(page.metrics, ok=9)
    page.tick()
    work(page.metrics, ok=2)
    page.tick()
    assert page.table("outcomes") == [["ok (mlp)", "2", "100 %"]]
    assert page.figure("requestsPerSecond") == "1/s"
