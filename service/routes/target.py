"""What a request is for: the served model and one of its resident layers."""

from __future__ import annotations

from service.errors import InvalidRequest, NotFound
from service.wire.quoting import quote


def resolve_layer(layers: tuple[int, ...], layer: int | None) -> int:
    """The resident layer that a request means; it may be left out when there is just one.

    Raises:
        InvalidRequest: left out where several layers are resident.
        NotFound: not resident.
    """
    if layer is None:
        if len(layers) > 1:
            raise InvalidRequest(
                f"layer: must be given, because {len(layers)} layers are resident: "
                f"{_ranges(layers)}"
            )
        return layers[0]
    if layer not in layers:
        raise NotFound(f"layer: must be resident ({_ranges(layers)}), is {layer}")
    return layer


def resolve_model(served: str, model: str | None) -> None:
    """Check that a request names the served model, or none.

    Raises:
        NotFound: another name.
    """
    if model is not None and model != served:
        raise NotFound(f"model: must be {served!r}, the one that is served, is {quote(model)}")


def _ranges(layers: tuple[int, ...]) -> str:
    """Layers as a user would write them: `0-3, 7`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
