"""Live and ready through a service's life, and the reason beside each no."""

from __future__ import annotations

from itertools import product

import pytest

from service.batching.health import Health, Phase
from service.errors import EngineError, Unavailable


def state(health: Health) -> tuple[bool, bool, bool]:
    return health.live, health.ready, health.engine_healthy


def test_starting():
    health = Health()
    assert state(health) == (True, False, True)
    with pytest.raises(Unavailable, match=r"^service: is starting") as refusal:
        health.require_ready()
    assert refusal.value.retry_after_s == 1


def test_serving():
    health = Health()
    health.serving()
    assert state(health) == (True, True, True)
    assert health.reason == ""
    health.require_ready()


def test_a_failed_self_test_takes_it_out_of_service_until_the_next_one_passes():
    health = Health()
    health.serving()
    health.self_test(EngineError("layer 3 is off by 0.5"))
    assert state(health) == (True, False, False)
    with pytest.raises(Unavailable, match=r"^self-test: layer 3 is off by 0.5"):
        health.require_ready()
    health.self_test(None)
    assert state(health) == (True, True, True)


def test_draining():
    health = Health()
    health.serving()
    health.draining()
    assert state(health) == (True, False, True)
    with pytest.raises(Unavailable, match="is draining"):
        health.require_ready()


def test_a_drain_during_start_up_is_not_undone_by_the_warm_up():
    health = Health()
    health.draining()
    health.serving()
    assert health.phase is Phase.DRAINING
    assert not health.ready


def test_dead():
    health = Health()
    health.serving()
    health.dead(RuntimeError("CUDA error"))
    assert state(health) == (False, False, False)
    with pytest.raises(Unavailable, match=r"^engine: CUDA error$"):
        health.require_ready()


def test_the_reason_of_a_drain_is_not_hidden_by_a_self_test():
    health = Health()
    health.serving()
    health.draining()
    health.self_test(EngineError("off"))
    assert "draining" in health.reason
    assert not health.engine_healthy


def test_the_phase_only_moves_forward():
    """After any three events, in any order, the furthest phase counts."""
    events = {
        "serving": Phase.SERVING,
        "draining": Phase.DRAINING,
        "dead": Phase.DEAD,
        "self_test": Phase.STARTING,
    }
    order = list(Phase)
    for names in product(events, repeat=3):
        health = Health()
        for name in names:
            arguments = [RuntimeError("x")] if name in ("dead", "self_test") else []
            getattr(health, name)(*arguments)
        furthest = max((events[name] for name in names), key=order.index)
        assert health.phase is furthest, names
        assert health.live == (furthest is not Phase.DEAD), names
        assert health.ready == (furthest is Phase.SERVING and "self_test" not in names), names
        # Whatever is not ready says why.
        assert bool(health.reason) != health.ready, names
