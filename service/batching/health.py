"""What a supervisor or load balancer may know: live, ready, and why not."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from service.errors import Unavailable


class Phase(Enum):
    """The life of the service; it only moves forward."""

    STARTING = auto()
    SERVING = auto()
    DRAINING = auto()
    DEAD = auto()


class Health:
    """Phase of the service and the last self-test's verdict; read without locks or GPU work.

    Attributes:
        on_change: Called after every change.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.phase = Phase.STARTING
        self._reason = "service: is starting, the engine is not warm yet"
        self._self_test_error: str | None = None

    def serving(self) -> None:
        """Warm-up is over."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.SERVING
            self.on_change()

    def draining(self) -> None:
        """A stop was asked for: finish what was accepted, accept nothing."""
        if self.phase is not Phase.DEAD:
            self.phase = Phase.DRAINING
            self._reason = "service: is draining and accepts nothing new"
            self.on_change()

    def dead(self, error: BaseException) -> None:
        """The engine or the batcher can serve nothing any more."""
        self.phase = Phase.DEAD
        self._reason = f"engine: {error}"
        self.on_change()

    def self_test(self, error: BaseException | None) -> None:
        """Record what the last self-test found."""
        before = self._self_test_error
        self._self_test_error = None if error is None else f"self-test: {error}"
        if self._self_test_error != before:
            self.on_change()

    def told(self) -> tuple[int, str, str | None]:
        """All of it, for `mirror` in another process."""
        return self.phase.value, self._reason, self._self_test_error

    def mirror(self, phase: int, reason: str, self_test_error: str | None) -> None:
        """Become what another process has `told`; a phase never goes back."""
        if phase >= self.phase.value:
            self.phase, self._reason = Phase(phase), reason
        self._self_test_error = self_test_error

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
