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
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from service.batching.request import Answer, Holding, PendingRequest
from service.errors import (
    OUTCOME_OK,
    Cancelled,
    InvalidRequest,
    ServiceError,
    TooLarge,
    Unavailable,
)
from service.front import Front
from service.routes.access import expected_key, require_key
from service.routes.body import (
    check_transfer_encoding,
    discard,
    parse_content_length,
)
from service.routes.direct import direct_of
from service.routes.disconnect import DisconnectWatch
from service.routes.intake import Intake
from service.routes.job import Head, Job, ReadHead
from service.routes.replies import (
    Headers,
    RawHeaders,
    Reply,
    error_reply,
    header_text,
    internal_error,
)
from service.wire.media import Encoding, parse_content_encoding

logger = logging.getLogger(__name__)

# Parsing, printing or compressing more than this on the event loop would delay everybody else by
# over 1 ms.
OFF_LOOP_BYTES = 32 << 10

# For the rest of a body that is refused, before its connection is closed.
_DISCARD_S = 1.0

# Of one number in a JSON answer, with its comma: nine digits, point, sign and often an exponent.
_JSON_NUMBER_BYTES = 12

_REQUEST_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)
_id_prefix = os.urandom(6).hex().encode()
_id_counter = itertools.count()

Result = TypeVar("Result")


class TensorEndpoint:
    """ASGI application for the tensor route of one API."""

    def __init__(self, api: str, read_head: ReadHead, front: Front) -> None:
        self._api = api
        self._read_head = read_head
        self.front = front
        self._intake = Intake(front)
        self._api_key = expected_key(front.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it, however it ends."""
        began = time.perf_counter()
        headers: Headers = dict(scope["headers"])
        request_id = request_id_of(headers)
        count = _Once(lambda outcome: self.count(outcome, began))
        refused, begun = True, False
        try:
            with self.front.in_progress:
                head, encoding, lease = await self._admit(scope, headers)
                refused = False
                job, answer = await self._compute(head, encoding, lease, scope, receive)
                try:
                    reply = await self._encode(head, job, answer, request_id)
                    # Whoever has an answer finds it counted, whichever process shows the metrics.
                    count(OUTCOME_OK)
                    begun = True
                    await self._send(reply, answer, scope, send)
                finally:
                    if answer.release is not None:
                        answer.release()
        except Cancelled as error:
            count(error.code)
        except ServiceError as error:
            count(error.code)
            reply = error_reply(error, [(b"x-request-id", request_id)])
            if refused and _closes(error, scope, headers):
                await reply.send(send, lambda: discard(receive, _DISCARD_S))
            else:
                await reply.send(send)
        except asyncio.CancelledError:
            count(Cancelled.code)
            raise
        except Exception as error:
            count(ServiceError.code)
            if not begun:
                await error_reply(internal_error(error), [(b"x-request-id", request_id)]).send(send)
            raise

    def count(self, outcome: str, began: float) -> None:
        """A request has ended that began then, by time.perf_counter."""
        self.front.counts.request_ended(self._api, outcome, time.perf_counter() - began)

    async def _admit(self, scope: Scope, headers: Headers) -> tuple[Head, Encoding | None, Holding]:
        """All that is decided before a byte of the body is read."""
        self.front.health.require_ready()
        head = self.read_head(scope, headers)
        check_transfer_encoding(headers.get(b"transfer-encoding"))
        encoding = parse_content_encoding(header_text(headers, b"content-encoding"))
        content_length = parse_content_length(headers.get(b"content-length"))
        return head, encoding, await self._intake.admit(head, content_length, encoding)

    def read_head(self, scope: Scope, headers: Headers) -> Head:
        """What path, query and headers say, if the key is right."""
        require_key(self._api_key, headers)
        return self._read_head(scope, headers)

    async def _compute(
        self,
        head: Head,
        encoding: Encoding | None,
        lease: Holding,
        scope: Scope,
        receive: Receive,
    ) -> tuple[Job, Answer]:
        try:
            job, request = await self._take(head, encoding, lease, scope, receive)
        except BaseException:
            lease.release()
            raise
        return job, await self._answer(job, request, receive)

    async def _encode(self, head: Head, job: Job, answer: Answer, request_id: bytes) -> Reply:
        began = time.perf_counter()
        common = self.common_headers(request_id, answer)
        reply = await _maybe_off_loop(
            head.written_bytes(answer.data.nbytes), lambda: head.encode(job, answer, common)
        )
        self.front.counts.stage("encode", time.perf_counter() - began)
        return reply

    async def _send(self, reply: Reply, answer: Answer, scope: Scope, send: Send) -> None:
        direct = direct_of(scope)
        if answer.release is None or direct is None:
            await reply.send(send)
        else:
            await reply.send_held(send, direct, self.front.settings.receive_timeout_s)

    async def _take(
        self,
        head: Head,
        encoding: Encoding | None,
        lease: Holding,
        scope: Scope,
        receive: Receive,
    ) -> tuple[Job, PendingRequest]:
        """Receive, decode and validate: all that comes before the queue."""
        front = self.front
        began = time.perf_counter()
        with front.in_progress.receiving():
            body = await self._intake.receive(scope, receive, lease, encoding)
        received = time.perf_counter()
        front.counts.stage("receive", received - began)
        job = await _maybe_off_loop(head.parsed_bytes(len(body)), lambda: head.decode(body))
        self.validate(head, job)
        request = self.pending(job, lease, len(body))
        front.counts.stage("decode", time.perf_counter() - received)
        return job, request

    def validate(self, head: Head, job: Job) -> None:
        """Check what only the decoded body tells.

        Raises:
            InvalidRequest: a tensor lies in shared memory, which is not allowed.
            TooLarge: its rows fit no batch, or its answer is too much JSON.
        """
        settings, tokens = self.front.settings, job.tensor.tokens
        for where, window in (("inputs[0]", job.source), ("outputs[0]", job.target)):
            if window is not None and self.front.regions is None:
                raise InvalidRequest(
                    f"{where}.parameters.shared_memory_region: shared memory is not allowed; "
                    "client_shared_memory (MLP_CLIENT_SHARED_MEMORY) allows it"
                )
        if tokens > settings.max_batch_tokens:
            raise TooLarge(
                f"shape: must have at most {settings.max_batch_tokens} rows, has {tokens}; send "
                "several requests, or raise max_batch_tokens (MLP_MAX_BATCH_TOKENS)"
            )
        text_bytes = tokens * self.front.model.width(job.output) * _JSON_NUMBER_BYTES
        if head.answers_json() and text_bytes > settings.max_json_bytes:
            raise TooLarge(
                f"answer: must have at most {settings.max_json_bytes} bytes of JSON, would have "
                f"about {text_bytes}; ask for application/octet-stream, or raise max_json_bytes "
                "(MLP_MAX_JSON_BYTES)"
            )

    def answer_bytes(self, job: Job) -> int:
        """Of the answer's tensor."""
        width = self.front.model.width(job.output)
        return job.tensor.tokens * width * job.output_dtype.itemsize

    def pending(self, job: Job, lease: Holding, nbytes: int) -> PendingRequest:
        """A job as the batcher takes it, of a body of so many bytes."""
        tokens = job.tensor.tokens
        lease.settle(tokens, nbytes)
        timeouts = [t for t in (self.front.settings.request_timeout_s, job.timeout_s) if t]
        deadline = time.monotonic() + min(timeouts) if timeouts else None
        return PendingRequest(
            layer=job.layer,
            output=job.output,
            tokens=tokens,
            data=memoryview(job.tensor.data),
            dtype=job.tensor.dtype,
            output_dtype=job.output_dtype,
            output_nbytes=self.answer_bytes(job),
            lease=lease,
            deadline=deadline,
        )

    async def _answer(self, job: Job, request: PendingRequest, receive: Receive) -> Answer:
        """Submit, and wait for the answer or for the client to leave."""
        front = self.front
        if job.source is None and job.target is None:
            future = await front.submit(request)
        else:
            future = await front.submit_shared(request, job.source, job.target)
        watch = DisconnectWatch(receive, lambda: front.cancel(request))
        try:
            return await future
        except asyncio.CancelledError:
            front.cancel(request)
            if future.done() and not future.cancelled() and future.exception() is None:
                release = future.result().release
                if release is not None:
                    release()
            raise
        finally:
            watch.stop()

    def common_headers(self, request_id: bytes, answer: Answer) -> RawHeaders:
        """Those that every answer carries."""
        timing = f"queue;dur={answer.queue_s * 1e3:.3f}, execute;dur={answer.execute_s * 1e3:.3f}"
        return [
            (b"x-request-id", request_id),
            *kernel_headers(answer.kernel, answer.batch_tokens),
            (b"server-timing", timing.encode()),
        ]


class _Once:
    """Counts the end of a request, whichever comes first."""

    __slots__ = ("_count",)

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count: Callable[[str], None] | None = count

    def __call__(self, outcome: str) -> None:
        count, self._count = self._count, None
        if count is not None:
            count(outcome)


def _closes(error: ServiceError, scope: Scope, headers: Headers) -> bool:
    """Whether the server closes the connection behind an error, rather than read on."""
    return (
        isinstance(error, Unavailable)
        or scope["http_version"] == "1.0"
        or b"close" in headers.get(b"connection", b"").lower()
    )


def kernel_headers(kernel: str, batch_tokens: int) -> RawHeaders:
    """What all answers of a batch say of it."""
    return [(b"x-mlp-kernel", kernel.encode()), (b"x-mlp-batch-tokens", b"%d" % batch_tokens)]


def request_id_of(headers: Headers) -> bytes:
    """The client's, or a new one where it has none that can be repeated."""
    return given_request_id(headers) or b"%s-%x" % (_id_prefix, next(_id_counter))


def given_request_id(headers: Headers) -> bytes:
    """The client's; empty where it has none that can be repeated."""
    given = headers.get(b"x-request-id", b"")
    return given if _REQUEST_ID.fullmatch(given) else b""


async def _maybe_off_loop(slow_bytes: int, work: Callable[[], Result]) -> Result:
    if slow_bytes > OFF_LOOP_BYTES:
        return await asyncio.to_thread(work)
    return work()
