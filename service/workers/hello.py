"""What the engine's process tells a front end before anything else: what is served, and how."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from service.config import Settings
from service.engine.base import DType, ModelSpec


@dataclass(frozen=True, slots=True)
class Hello:
    """The service, as a front end has to know it.

    Attributes:
        index: Which front end it is.
        arena_bytes: Of the shared memory's two arenas, each.
        reason: Why it is this backend on this device.
        cuda_shared_memory: Clients may share memory of the engine's GPU.
    """

    index: int
    arena_bytes: int
    settings: Settings
    model: ModelSpec
    backend: str
    device: str
    reason: str
    cuda_shared_memory: bool

    def pack(self) -> bytes:
        """As JSON."""
        settings = self.settings.model_dump(mode="json")
        if self.settings.api_key is not None:
            # The dump shows stars; this goes from parent to child and nowhere else.
            settings["api_key"] = self.settings.api_key.get_secret_value()
        model = asdict(self.model) | {"dtype": self.model.dtype.value}
        fields = {name: getattr(self, name) for name in _PLAIN}
        return json.dumps({**fields, "settings": settings, "model": model}).encode()

    @classmethod
    def unpack(cls, text: bytes) -> Hello:
        """From `pack`."""
        found: dict[str, Any] = json.loads(text)
        model = found.pop("model")
        model |= {"layers": tuple(model["layers"]), "dtype": DType(model["dtype"])}
        settings = Settings(**found.pop("settings"))
        return cls(**found, settings=settings, model=ModelSpec(**model))


_PLAIN = ("index", "arena_bytes", "backend", "device", "reason", "cuda_shared_memory")
