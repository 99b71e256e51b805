"""What a client may do with handles of its memory, followed by allocations of our own.

python -m tests.engine.handle_steps STEP says `fine` where all of them succeed, else what failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch

from service.kernels.errors import KernelError
from service.kernels.ipc import HANDLE_BYTES, Ipc
from service.kernels.library import default_library
from tests.engine.cuda_client import CudaClient, loaded_runtime

MIB = 1 << 20
ROUNDS = 6


def allocate() -> None:
    """Memory of many sizes, fresh from the driver."""
    torch.cuda.empty_cache()
    kept = [
        torch.ones(mib * MIB, dtype=torch.uint8, device="cuda")
        for mib in (1, 3, 8, 20, 33, 64, 130, 300, 700)
    ]
    torch.cuda.synchronize()
    assert all(int(one[-1]) == 1 for one in kept)


def once(ipc: Ipc, client: CudaClient) -> None:
    """Opened, closed, freed."""
    address, handle = client.allocate(96 * MIB)
    mapped = ipc.open(handle)
    allocate()
    ipc.close(mapped.address)
    client.free(address)


def twice(ipc: Ipc, client: CudaClient) -> None:
    """Opened under two names."""
    address, handle = client.allocate(96 * MIB)
    first, second = ipc.open(handle), ipc.open(handle)
    ipc.close(second.address)
    allocate()
    ipc.close(first.address)
    client.free(address)


def pieces(ipc: Ipc, client: CudaClient) -> None:
    """Two small allocations, which the driver cuts out of one block."""
    made = [client.allocate(2048) for _ in range(2)]
    mapped = [ipc.open(handle) for _, handle in made]
    allocate()
    for one in mapped:
        ipc.close(one.address)
    allocate()
    for address, _ in made:
        client.free(address)


def freed(ipc: Ipc, client: CudaClient) -> None:
    """Freed by the client while it is open here."""
    address, handle = client.allocate(96 * MIB)
    mapped = ipc.open(handle)
    client.free(address)
    allocate()
    ipc.close(mapped.address)


def garbage(ipc: Ipc, client: CudaClient) -> None:
    """Handles of nothing."""
    del client
    for handle in (os.urandom(HANDLE_BYTES), bytes(HANDLE_BYTES)):
        try:
            ipc.open(handle)
        except KernelError:
            continue
        raise AssertionError("garbage was opened")


STEPS: dict[str, Callable[[Ipc, CudaClient], None]] = {
    step.__name__: step for step in (once, twice, pieces, freed, garbage)
}


def main(step: str) -> None:
    """Several rounds of a step, with allocations behind each and behind the client's end."""
    torch.cuda.init()
    allocate()
    ipc = Ipc(default_library())
    with CudaClient(loaded_runtime()) as client:
        for _ in range(ROUNDS):
            STEPS[step](ipc, client)
            allocate()
    allocate()
    sys.stdout.write("fine\n")


if __name__ == "__main__":
    main(sys.argv[1])
