"""The host half of the kernel library, for what chooses among kernels."""

from tests.kernels.conftest import host_library

__all__ = ["host_library"]
