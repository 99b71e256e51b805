"""What a supervisor or load balancer may know: live, ready, and why not."""

from __future__ import annotations

from enum import Enum, auto

from service.errors import Unavailable


class Phase(Enum):
    """The life of the service; it only moves forward."""

    STARTING = auto()
    SERVING = auto()
    DRAINING = auto()
    DEAD = auto()


class Health:
    """Phase of the service and the last self-test's verdict; read without locks or GPU work."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self._reason = "service: is starting, the engine is not warm yet"
        self._self_test_error: str | None = None

    def serving(self) -> None:
        """Warm-up is over."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.SERVING

    def draining(self) -> None:
        """A stop was asked for: finish what was accepted, accept nothing."""
        if self.phase is not Phase.DEAD:
            self.phase = Phase.DRAINING
            self._reason = "service: is draining and accepts nothing new"

    def dead(self, error: BaseException) -> None:
        """The engine or the batcher can serve nothing any more."""
        self.phase = Phase.DEAD
        self._reason = f"engine: {error}"

    def self_test(self, error: BaseException | None) -> None:
        """Record what the last self-test found."""
        self._self_test_error = None if error is None else f"self-test: {error}"

    @property
    def live(self) -> bool:
        """False when only a restart can help."""
        return self.phase is not Phase.DEAD

    @property
    def engine_healthy(self) -> bool:
        """The engine computes, and computes right."""
        return self.live and self._self_test_error is None

    @property
    def ready(self) -> bool:
        """Requests are accepted."""
        return self.phase is Phase.SERVING and self._self_test_error is None

    @property
    def reason(self) -> str:
        """Why `ready` is false."""
        if self.phase is Phase.SERVING:
            return self._self_test_error or ""
        return self._reason

    def require_ready(self) -> None:
        """Raises Unavailable, with the reason, when nothing is accepted."""
        if not self.ready:
            raise Unavailable(self.reason)
