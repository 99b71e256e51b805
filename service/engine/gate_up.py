"""The gate/up product of a resident model by the kernel library: chosen by size, then launched."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from service.engine.base import ModelSpec
from service.engine.dispatch import (
    Mode,
    Problem,
    family,
    is_plain,
    select_kernel,
    validate_dispatch,
)
from service.engine.weights import TORCH_DTYPES
from service.kernels.checks import ACTIVATIONS, DTYPES
from service.kernels.dispatch_table import DispatchTable
from service.kernels.launcher import WEIGHTS_CONSTANT, Launcher, stream_of
from service.kernels.library import KernelChoice


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """What runs at one batch size.

    Attributes:
        family: `kernel1` or `kernel2`, as the metrics count it.
        name: Family and configuration, as a client sees it.
    """

    choice: KernelChoice
    family: str
    name: str


class GateUp:
    """One model's gate/up products."""

    def __init__(
        self,
        launcher: Launcher,
        model: ModelSpec,
        mode: Mode,
        num_sms: int,
        table: DispatchTable | None = None,
    ) -> None:
        """Bind.

        Args:
            launcher: Of the library that has the kernels.
            model: Whose weights they multiply.
            mode: Which rule chooses.
            num_sms: Multiprocessors of the GPU.
            table: What was measured on this GPU with bf16 and SiLU.

        Raises:
            ConfigError: the library has no kernel for the mode.
        """
        self._launcher = launcher
        self._model = model
        self._mode = mode
        self._num_sms = num_sms
        self._plain = is_plain(model)
        self._table = table if self._plain else None
        self._types = {
            "dtype": DTYPES[TORCH_DTYPES[model.dtype]],
            "activation": ACTIVATIONS[model.activation],
        }
        self._chosen: dict[int, ChosenKernel] = {}
        validate_dispatch(mode, launcher.library.configs, plain=self._plain)

    def choose(self, tokens: int) -> ChosenKernel:
        """The kernel for a batch; pure, and remembered."""
        found = self._chosen.get(tokens)
        if found is None:
            found = self._chosen[tokens] = self._choose(tokens)
        return found

    def describe(self, max_tokens: int) -> str:
        """What runs up to which batch size, for the log."""
        sizes = [1 << power for power in range((max_tokens - 1).bit_length())] + [max_tokens]
        parts: list[tuple[str, int]] = []
        for size in sizes:
            name = self.choose(size).name
            if parts and parts[-1][0] == name:
                parts.pop()
            parts.append((name, size))
        return ", ".join(f"{name} up to {size} tokens" for name, size in parts)

    def run(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Enqueue on the current stream of the current device.

        Args:
            x: [tokens, hidden_size] of the resident dtype.
            weight: [2N, K], gate first, resident: nothing on any stream writes it.
            out: [tokens, intermediate_size].
        """
        choice = self.choose(len(x)).choice
        stream = stream_of(x.get_device())
        # Nobody checks the engine's own buffers; that took half of the time.
        self._launcher.enqueue(
            x, weight, out, self._model.activation, choice, WEIGHTS_CONSTANT, stream
        )

    def _choose(self, tokens: int) -> ChosenKernel:
        library = self._launcher.library
        size, hidden = self._model.intermediate_size, self._model.hidden_size
        chosen = library.select(tokens, size, hidden, self._num_sms, **self._types)
        ranked = () if self._table is None else self._table.ranked(tokens, size, hidden)
        problem = Problem(tokens, size, self._num_sms, self._plain)
        choice = select_kernel(self._mode, problem, library.configs, chosen, ranked)
        config = library.configs[choice.config]
        return ChosenKernel(choice, family(config), f"{family(config)}/{config.name}")
