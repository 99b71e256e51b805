"""What an API makes of a tensor request: its head, before any byte of the body, then its job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope

from service.batching.request import Answer
from service.engine.base import DType, Output
from service.routes.replies import Headers, RawHeaders, Reply
from service.wire.tensor import WireTensor
from service.wire.window import Window

# On any wire: a bf16 or fp16 value, or one digit and a comma of JSON.
SMALLEST_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Job:
    """A decoded request: what to compute and in which form its answer goes back.

    Attributes:
        layer: Resident layer.
        output_dtype: Element type in which the engine writes the answer.
        timeout_s: Longest wait in the queue that this request allows; None leaves it to the
            service.
        source: Where in shared memory the tensor's data lies; None where it came with the body.
        target: Where in shared memory the answer goes.
    """

    tensor: WireTensor
    layer: int
    output: Output
    output_dtype: DType
    timeout_s: float | None
    source: Window | None = None
    target: Window | None = None


class Head(Protocol):
    """What an API has read from path, query and headers, before any byte of the body."""

    def tokens_at_most(self, content_length: int) -> int:
        """Rows that a body of content_length bytes can hold at most."""

    def parsed_bytes(self, body_bytes: int) -> int:
        """How many bytes of a body have to be parsed, rather than taken as they are."""

    def decode(self, body: memoryview) -> Job:
        """Read the body."""

    def answers_json(self) -> bool:
        """The answer's tensor is printed as JSON; asked after `decode`."""

    def written_bytes(self, answer_bytes: int) -> int:
        """How many bytes of an answer have to be printed or compressed; asked after `decode`."""

    def encode(self, job: Job, answer: Answer, headers: RawHeaders) -> Reply:
        """Write the answer; `headers` are those that every answer carries."""


ReadHead = Callable[[Scope, Headers], Head]
