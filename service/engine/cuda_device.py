"""All that the fused engine asks of CUDA: streams, events, pinned memory, graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch


class CudaDevice:
    """One GPU with a stream for each direction of copies and one for kernels.

    One stream for all kernels, so that batches compute one after the other: side by side they
    would take turns in L2, and neither's time could be told.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = torch.cuda.get_device_name(device)
        properties = torch.cuda.get_device_properties(device)
        self.num_sms: int = properties.multi_processor_count
        self.h2d, self.compute, self.d2h = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for _ in range(3)
        )
        # Graphs allocate nothing, and with a pool each would make torch keep thousands.
        self._pool = torch.cuda.graph_pool_handle()
        self._thread = threading.local()

    def enter(self) -> None:
        """Make `compute` the calling thread's current stream, for good."""
        if not getattr(self._thread, "entered", False):
            torch.cuda.set_stream(self.compute)
            # Binds CUDA's context to the thread, which torch misses where cuBLAS comes first.
            self.compute.query()
            # Conversions of rows are too short for a team of threads, which was measured to take
            # 250 µs for 114 KB.
            torch.set_num_threads(1)
            self._thread.entered = True

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """Make a stream current for a while."""
        return torch.cuda.stream(stream)

    def empty(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Device memory, with whatever was left in it."""
        return torch.empty(rows, columns, dtype=dtype, device=self.device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Page-locked host memory of bytes: the only kind that is copied without waiting."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether host memory is page-locked, by whomever."""
        return tensor.is_pinned()

    def pin(self, memory: torch.Tensor) -> None:
        """Page-lock host memory that somebody else allocated, from any thread.

        Raises:
            RuntimeError: CUDA refuses.
        """
        with torch.cuda.device(self.device):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            status = cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
            torch.cuda.check_error(int(status))

    def unpin(self, memory: torch.Tensor) -> None:
        """Undo `pin`.

        Raises:
            RuntimeError: CUDA refuses.
        """
        with torch.cuda.device(self.device):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(int(cudart.cudaHostUnregister(memory.data_ptr())))

    def event(self) -> torch.cuda.Event:
        """For waiting."""
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def timer(self, *, in_graph: bool = False) -> torch.cuda.Event:
        """For measuring; one recorded inside a graph is recorded again by each replay."""
        return torch.cuda.Event(  # type: ignore[no-untyped-call]
            enable_timing=True, external=in_graph
        )

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """What `enqueue` puts on the current stream, as a graph; it allocates nothing.

        Returns:
            Launches all of it on the current stream.
        """
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph(), which collects garbage and empties torch's cache each time. Other
        # threads may pin memory meanwhile, which a capture in global mode would not survive.
        graph.capture_begin(self._pool, capture_error_mode="thread_local")
        try:
            enqueue()
        finally:
            graph.capture_end()
        return graph.replay

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        torch.cuda.synchronize(self.device)
