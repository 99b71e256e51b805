"""Which torch errors end a batch and which end the engine."""

from __future__ import annotations

import torch

from service.errors import EngineDead, EngineError


class DeviceFaults:
    """Translates torch's errors, as a context manager, into the service's.

    After an illegal access or a launch failure every later call of the process fails too, so such
    an error is never retried. Running out of memory leaves the device usable.

    What leaves the context is EngineDead where the device can run nothing any more, and EngineError
    where it ran out of memory.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        """Say what is being done, for the message."""
        self._doing = doing

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise the translation of what was raised, if it has one."""
        if isinstance(error, torch.OutOfMemoryError):
            raise EngineError(f"{self._doing}: out of device memory") from error
        if isinstance(error, RuntimeError) and is_fatal(error):
            raise EngineDead(f"{self._doing}: {str(error).splitlines()[0]}") from error


def is_fatal(error: RuntimeError) -> bool:
    """Whether an error has left the device unusable for this process."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    # cuBLAS and older paths raise a bare RuntimeError with the same first words.
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
