"""Which torch errors end a batch and which end the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from service.errors import EngineDead, EngineError


@contextmanager
def device_faults(doing: str) -> Iterator[None]:
    """Translate torch's errors into the service's.

    After an illegal access or a launch failure every later call of the process fails too, so such
    an error is never retried. Running out of memory leaves the device usable.

    Args:
        doing: What was being done, for the message.

    Raises:
        EngineDead: the device can run nothing any more.
        EngineError: the device ran out of memory.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineError(f"{doing}: out of device memory") from error
    except RuntimeError as error:
        if is_fatal(error):
            raise EngineDead(f"{doing}: {str(error).splitlines()[0]}") from error
        raise


def is_fatal(error: RuntimeError) -> bool:
    """Whether an error has left the device unusable for this process."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    # cuBLAS and older paths raise a bare RuntimeError with the same first words.
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
