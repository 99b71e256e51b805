"""The path of a tensor request, from headers to answer, the same for every API.

A raw ASGI endpoint, because FastAPI's parameter machinery costs as much per small request as
everything here together. An API says how to read its headers, decode its body and encode its
answer; admission, receiving, batching, cancelling, counting and errors are here, once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from service.batching.admission import Lease
from service.batching.request import Answer, PendingRequest
from service.engine.base import DType, Output
from service.errors import OUTCOME_OK, Cancelled, ServiceError, TooLarge, Unavailable
from service.routes.access import expected_key, require_key
from service.routes.body import (
    check_transfer_encoding,
    discard,
    parse_content_length,
    receive_growing,
    receive_into,
    too_large,
)
from service.routes.disconnect import DisconnectWatch
from service.routes.replies import (
    Headers,
    RawHeaders,
    Reply,
    error_reply,
    header_text,
    internal_error,
)
from service.routes.shared_tensors import SharedTensors
from service.runtime import Runtime
from service.wire.compression import inflate
from service.wire.media import Encoding, parse_content_encoding
from service.wire.tensor import WireTensor
from service.wire.window import Window

logger = logging.getLogger(__name__)

# Parsing, printing or compressing more than this on the event loop would delay everybody else by
# over 1 ms.
_OFF_LOOP_BYTES = 32 << 10

# For the rest of a body that is refused, before its connection is closed.
_DISCARD_S = 1.0

# Room for a body whose length is not declared, to begin with; it grows as the body does.
_FIRST_BYTES = 64 << 10

# Of one number in a JSON answer, with its comma: nine digits, point, sign and often an exponent.
_JSON_NUMBER_BYTES = 12
# On any wire: a bf16 or fp16 value, or one digit and a comma of JSON.
SMALLEST_ELEMENT_BYTES = 2

_REQUEST_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)
_id_prefix = os.urandom(6).hex().encode()
_id_counter = itertools.count()

Result = TypeVar("Result")


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


class TensorEndpoint:
    """ASGI application for the tensor route of one API."""

    def __init__(self, api: str, read_head: ReadHead, runtime: Runtime) -> None:
        self._api = api
        self._read_head = read_head
        self._runtime = runtime
        self._api_key = expected_key(runtime.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it, however it ends."""
        began = time.perf_counter()
        headers: Headers = dict(scope["headers"])
        request_id = _request_id(headers)
        outcome = ServiceError.code
        refused = True
        try:
            with self._runtime.in_progress:
                head, encoding, lease = self._admit(scope, headers)
                refused = False
                reply = await self._serve(head, encoding, lease, receive, request_id)
                await reply.send(send)
            outcome = OUTCOME_OK
        except Cancelled as error:
            outcome = error.code
        except ServiceError as error:
            outcome = error.code
            reply = error_reply(error, [(b"x-request-id", request_id)])
            if refused and _closes(error, scope, headers):
                await reply.send(send, lambda: discard(receive, _DISCARD_S))
            else:
                await reply.send(send)
        except asyncio.CancelledError:
            outcome = Cancelled.code
            raise
        except Exception as error:
            await error_reply(internal_error(error), [(b"x-request-id", request_id)]).send(send)
            raise
        finally:
            self._runtime.metrics.request_ended(self._api, outcome, time.perf_counter() - began)

    def _admit(self, scope: Scope, headers: Headers) -> tuple[Head, Encoding | None, Lease]:
        """All that is decided before a byte of the body is read."""
        self._runtime.health.require_ready()
        require_key(self._api_key, headers)
        head = self._read_head(scope, headers)
        check_transfer_encoding(headers.get(b"transfer-encoding"))
        encoding = parse_content_encoding(header_text(headers, b"content-encoding"))
        content_length = parse_content_length(headers.get(b"content-length"))
        return head, encoding, self._lease(head, content_length, encoding)

    def _lease(self, head: Head, content_length: int | None, encoding: Encoding | None) -> Lease:
        """Room for the body, or for its beginning where headers do not tell its size."""
        settings, admission = self._runtime.settings, self._runtime.admission
        limit = settings.max_body_bytes
        if content_length is None:
            return admission.admit(self._rows_in(_FIRST_BYTES), _FIRST_BYTES, slot_bytes=0)
        if content_length > limit:
            raise too_large(limit, str(content_length))
        if encoding is not None:
            return admission.admit(self._rows_in(content_length), content_length)
        # What turns out to hold more rows than a batch is refused after decoding.
        tokens = min(head.tokens_at_most(content_length), settings.max_batch_tokens)
        return admission.admit(tokens, content_length)

    def _rows_in(self, nbytes: int) -> int:
        """Rows that nbytes of any format hold at most, as far as they fit a batch."""
        rows = nbytes // (self._runtime.model.hidden_size * SMALLEST_ELEMENT_BYTES)
        return min(rows, self._runtime.settings.max_batch_tokens)

    async def _serve(
        self,
        head: Head,
        encoding: Encoding | None,
        lease: Lease,
        receive: Receive,
        request_id: bytes,
    ) -> Reply:
        runtime = self._runtime
        shared = SharedTensors(runtime.regions, runtime.metrics)
        try:
            try:
                job, request = await self._take(head, encoding, lease, shared, receive)
            except BaseException:
                lease.release()
                raise
            answer = await self._answer(request, receive)
            began = time.perf_counter()
            await shared.write(answer.data)
        finally:
            shared.close()
        common = self._common_headers(request_id, answer)
        reply = await _maybe_off_loop(
            head.written_bytes(request.output_nbytes), lambda: head.encode(job, answer, common)
        )
        runtime.metrics.stage("encode", time.perf_counter() - began)
        return reply

    async def _take(
        self,
        head: Head,
        encoding: Encoding | None,
        lease: Lease,
        shared: SharedTensors,
        receive: Receive,
    ) -> tuple[Job, PendingRequest]:
        """Receive, decode and validate: all that comes before the queue."""
        runtime = self._runtime
        began = time.perf_counter()
        body = await self._receive(receive, lease, encoding)
        received = time.perf_counter()
        runtime.metrics.stage("receive", received - began)
        job = await _maybe_off_loop(head.parsed_bytes(len(body)), lambda: head.decode(body))
        self._validate(head, job)
        data = memoryview(job.tensor.data)
        nbytes = len(body)
        if job.source is not None or job.target is not None:
            tokens, dtype = job.tensor.tokens, job.tensor.dtype
            shared.open(job.source, job.target, self._answer_bytes(job))
            limit = runtime.settings.max_body_bytes
            found = await shared.read(lease, tokens, dtype, limit)
            if found is not None:
                data, nbytes = found, found.nbytes
            shared.place(lease, job.output_dtype)
        request = self._pending(job, lease, data, nbytes, shared.output)
        runtime.metrics.stage("decode", time.perf_counter() - received)
        return job, request

    async def _receive(
        self, receive: Receive, lease: Lease, encoding: Encoding | None
    ) -> memoryview:
        settings = self._runtime.settings
        limit, timeout_s = settings.max_body_bytes, settings.receive_timeout_s
        if lease.slot.view.nbytes:
            received = await receive_into(receive, lease.slot.view, timeout_s)
            body = lease.slot.view[:received]
        else:

            def grow(nbytes: int) -> None:
                lease.grow(self._rows_in(nbytes), nbytes)

            body = await receive_growing(receive, limit, timeout_s, _FIRST_BYTES, grow)
        if encoding is None:
            return body
        # Into fresh memory: a thread may outlive its cancelled request, and slots are reused.
        inflated = await asyncio.to_thread(lambda: inflate(body, encoding, limit))
        if len(inflated) > len(body):
            lease.grow(self._rows_in(len(inflated)), len(inflated))
        return inflated

    def _validate(self, head: Head, job: Job) -> None:
        settings, tokens = self._runtime.settings, job.tensor.tokens
        if tokens > settings.max_batch_tokens:
            raise TooLarge(
                f"shape: must have at most {settings.max_batch_tokens} rows, has {tokens}; send "
                "several requests, or raise max_batch_tokens (MLP_MAX_BATCH_TOKENS)"
            )
        text_bytes = tokens * self._runtime.model.width(job.output) * _JSON_NUMBER_BYTES
        if head.answers_json() and text_bytes > settings.max_json_bytes:
            raise TooLarge(
                f"answer: must have at most {settings.max_json_bytes} bytes of JSON, would have "
                f"about {text_bytes}; ask for application/octet-stream, or raise max_json_bytes "
                "(MLP_MAX_JSON_BYTES)"
            )

    def _answer_bytes(self, job: Job) -> int:
        width = self._runtime.model.width(job.output)
        return job.tensor.tokens * width * job.output_dtype.itemsize

    def _pending(
        self, job: Job, lease: Lease, data: memoryview, nbytes: int, output: memoryview | None
    ) -> PendingRequest:
        tokens = job.tensor.tokens
        lease.settle(tokens, nbytes)
        timeouts = [t for t in (self._runtime.settings.request_timeout_s, job.timeout_s) if t]
        deadline = time.monotonic() + min(timeouts) if timeouts else None
        return PendingRequest(
            layer=job.layer,
            output=job.output,
            tokens=tokens,
            data=data,
            dtype=job.tensor.dtype,
            output_dtype=job.output_dtype,
            output_nbytes=self._answer_bytes(job),
            lease=lease,
            deadline=deadline,
            output_data=output,
        )

    async def _answer(self, request: PendingRequest, receive: Receive) -> Answer:
        """Submit, and wait for the answer or for the client to leave."""
        batcher = self._runtime.batcher
        future = batcher.submit(request)
        watch = DisconnectWatch(receive, lambda: batcher.cancel(request))
        try:
            return await future
        except asyncio.CancelledError:
            batcher.cancel(request)
            raise
        finally:
            watch.stop()

    def _common_headers(self, request_id: bytes, answer: Answer) -> RawHeaders:
        timing = f"queue;dur={answer.queue_s * 1e3:.3f}, execute;dur={answer.execute_s * 1e3:.3f}"
        return [
            (b"x-request-id", request_id),
            (b"x-mlp-kernel", answer.kernel.encode()),
            (b"x-mlp-batch-tokens", b"%d" % answer.batch_tokens),
            (b"server-timing", timing.encode()),
        ]


def _closes(error: ServiceError, scope: Scope, headers: Headers) -> bool:
    """Whether the server closes the connection behind an error, rather than read on."""
    return (
        isinstance(error, Unavailable)
        or scope["http_version"] == "1.0"
        or b"close" in headers.get(b"connection", b"").lower()
    )


def _request_id(headers: Headers) -> bytes:
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return b"%s-%x" % (_id_prefix, next(_id_counter))


async def _maybe_off_loop(slow_bytes: int, work: Callable[[], Result]) -> Result:
    if slow_bytes > _OFF_LOOP_BYTES:
        return await asyncio.to_thread(work)
    return work()
