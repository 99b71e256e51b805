"""libswiglu.so: where it is looked for, what it says of itself, and which kernels it holds."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.kernels.abi import ABI_VERSION, CONFIG_AUTO, Args, Choice, Config, Raster, declare
from service.kernels.errors import KernelError, LibraryError, make_error

_NAME = "libswiglu.so"
_HERE = Path(__file__).resolve().parent
# Beside this file in an installed package; the build directory of a checkout.
SEARCHED = (_HERE / _NAME, _HERE.parents[1] / "build" / "csrc" / _NAME)


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """One compiled kernel: tile shape, cluster and schedule.

    Attributes:
        id: What a choice of this kernel holds.
        kernel: 1, gate and up in two passes over hidden_size, or 2, both in one; 0, the down
            projection.
        name: Such as `pp_128x192_c2x1`; the tile in it is the accumulator's.
        tile_m: Output tile of one CTA in tokens.
        tile_n: Output tile of one CTA in columns of the output.
        granularity: Columns of gate, then of up, in the accumulator: 8 or 1; 0 in Kernel-1, and
            -1 wants weights that lie interleaved by 8 rows in memory.
        all_types: Compiled for every dtype and activation, not only for bf16 with SiLU.
        comparison: Never chosen, there to be measured against another.
        swap_ab: For few tokens: the weights are the M operand of the tensor cores.
        split_k: CTAs that share the sum over K of one tile.
    """

    id: int
    kernel: int
    name: str
    tile_m: int
    tile_n: int
    granularity: int
    all_types: bool
    comparison: bool
    swap_ab: bool = False
    split_k: int = 1


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Which kernel runs and in which order it works on output tiles; left open, the library says.

    Attributes:
        config: Id of a kernel.
        raster: A Raster.
        swizzle: Clusters of neighbouring tiles worked on together, for L2 reuse, from 1 up; 0
            leaves it open.
    """

    config: int = CONFIG_AUTO
    raster: int = Raster.AUTO
    swizzle: int = 0


class Library:
    """A loaded libswiglu.so.

    Attributes:
        path: Where it was found.
        functions: The functions of swiglu.h, with their types.
        holding: All functions, called without giving the interpreter's lock away.
        launch_packed: swiglu_launch on the bytes of a swiglu_args_t.
        build_info: Versions that it was built with, as "key=value" pairs.
        configs: Every compiled kernel of the gate/up product, by id.
        launch_down_packed: swiglu_down_launch on the bytes of a swiglu_down_args_t.
        down_configs: Every compiled kernel of the down projection, by id.
    """

    def __init__(self, path: Path) -> None:
        """Load it.

        Raises:
            LibraryError: it cannot be loaded, or is not the version this package was written for.
        """
        self.path = path
        try:
            self.functions = ctypes.CDLL(str(path.resolve()))
            declare(self.functions)
        except (OSError, AttributeError) as error:
            raise LibraryError(f"kernel library: {path} cannot be loaded: {error}") from None
        # A launch takes 3 µs, and keeps the interpreter's lock for them: whoever got it meanwhile
        # would keep it for longer, while a kernel ends and nothing is there to follow it. The
        # arguments are bytes, which ctypes hands over as they are.
        holding = self.holding = ctypes.PyDLL(str(path.resolve()))
        self.launch_packed = holding["swiglu_launch"]
        self.launch_packed.restype = ctypes.c_int
        self.launch_packed.argtypes = (
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        )
        version = self.functions.swiglu_abi_version()
        if version != ABI_VERSION:
            raise LibraryError(
                f"kernel library: ABI version must be {ABI_VERSION}, is {version} in {path}"
            )
        self.build_info: str = self.functions.swiglu_build_info().decode()
        self.configs = self._read_configs(
            self.functions.swiglu_config_count, self.functions.swiglu_get_config
        )
        self.launch_down_packed = holding["swiglu_down_launch"]
        self.launch_down_packed.restype = ctypes.c_int
        self.launch_down_packed.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
        self.down_configs = self._read_configs(
            self.functions.swiglu_down_config_count, self.functions.swiglu_down_get_config
        )

    def config(self, name: str) -> KernelConfig:
        """The kernel of that name.

        Raises:
            KeyError: there is none.
        """
        for config in self.configs:
            if config.name == name:
                return config
        raise KeyError(name)

    def select(
        self, tokens: int, intermediate_size: int, hidden_size: int, num_sms: int, **types: int
    ) -> KernelChoice:
        """What the library runs for a problem where nothing is chosen; needs no GPU.

        Args:
            tokens: M, 1 or more.
            intermediate_size: N, 1 or more.
            hidden_size: K.
            num_sms: Multiprocessors of the device.
            types: `dtype` and `activation` by their codes; bf16 and SiLU by default.

        Raises:
            InvalidArgument: one of them is out of range.
        """
        choice = Choice()
        dtype, activation = types.get("dtype", 0), types.get("activation", 0)
        self.check(
            self.functions.swiglu_select(
                tokens,
                intermediate_size,
                hidden_size,
                dtype,
                activation,
                num_sms,
                ctypes.byref(choice),
            )
        )
        return KernelChoice(choice.config, Raster(choice.raster), choice.swizzle)

    def select_down(
        self, tokens: int, hidden_size: int, intermediate_size: int, num_sms: int, dtype: int = 0
    ) -> int:
        """Id of the kernel that runs a down projection where nothing is chosen; needs no GPU.

        Args:
            tokens: M, 1 or more.
            hidden_size: N, 1 or more.
            intermediate_size: K.
            num_sms: Multiprocessors of the device.
            dtype: By its code; bf16 by default.

        Raises:
            InvalidArgument: one of them is out of range.
        """
        choice = ctypes.c_int32()
        self.check(
            self.functions.swiglu_down_select(
                tokens, hidden_size, intermediate_size, dtype, num_sms, ctypes.byref(choice)
            )
        )
        return choice.value

    def workspace_size(self, args: Args) -> int:
        """Bytes of device workspace that a launch with these arguments needs.

        Raises:
            InvalidArgument: the arguments break a rule.
        """
        size = ctypes.c_size_t()
        self.check(self.functions.swiglu_workspace_size(ctypes.byref(args), ctypes.byref(size)))
        return size.value

    def check(self, status: int) -> None:
        """Raise the exception for a status of the call that this thread made last.

        Raises:
            KernelError: or its subclass for the reason, if the status is not OK.
        """
        if status:
            raise self.make_error(status)

    def make_error(self, status: int) -> KernelError:
        """The exception for such a status other than OK."""
        return make_error(status, self.functions.swiglu_last_error().decode())

    def _read_configs(
        self, count: Callable[[], int], get_config: Callable[..., int]
    ) -> tuple[KernelConfig, ...]:
        found = []
        for index in range(count()):
            config = Config(struct_size=ctypes.sizeof(Config))
            self.check(get_config(index, ctypes.byref(config)))
            found.append(_kernel_config(config))
        return tuple(found)


def _kernel_config(config: Config) -> KernelConfig:
    return KernelConfig(
        id=config.id,
        kernel=config.kernel,
        name=config.name.decode(),
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        granularity=config.granularity,
        all_types=bool(config.all_types),
        comparison=bool(config.comparison),
        swap_ab=bool(config.swap_ab),
        split_k=config.split_k,
    )


def bind(
    library: Library,
    prototypes: Mapping[str, tuple[type | None, tuple[type, ...]]],
    *,
    holding: bool = False,
) -> None:
    """Give functions beyond those of swiglu.h their types.

    Args:
        library: Where they are.
        prototypes: Result and arguments by name.
        holding: Those that keep the interpreter's lock.

    Raises:
        LibraryError: it lacks one of them.
    """
    for name, (result, arguments) in prototypes.items():
        try:
            function = getattr(library.holding if holding else library.functions, name)
        except AttributeError:
            raise LibraryError(
                f"kernel library: {library.path} must have {name}, has not; "
                "`make kernels` builds it anew"
            ) from None
        function.restype = result
        function.argtypes = arguments


def find_library() -> Path:
    """Path of libswiglu.so.

    Raises:
        LibraryError: it is in none of the places; the message names them.
    """
    for path in SEARCHED:
        if path.is_file():
            return path
    places = " or ".join(str(path) for path in SEARCHED)
    raise LibraryError(f"kernel library: must be {places}, is neither; `make kernels` builds it")


@functools.cache
def default_library() -> Library:
    """The library of this installation, loaded once per process.

    Raises:
        LibraryError: it is missing or cannot be used.
    """
    return Library(find_library())
