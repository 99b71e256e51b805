"""Tensor requests that are small and have arrived whole, without a task and without ASGI.

All that is rare is left to the usual way: who is not served here, for whatever reason, is served or
refused there, so that there is one place for refusals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

from starlette.types import Scope

from service.batching.request import Answer, Holding, PendingRequest
from service.engine.base import Buffer, DType, Output
from service.errors import OUTCOME_OK, ServiceError
from service.routes.job import Head, Job
from service.routes.replies import Headers, RawHeaders, Reply, error_reply, internal_error
from service.routes.tensor import (
    OFF_LOOP_BYTES,
    TensorEndpoint,
    given_request_id,
    request_id_of,
)

# See service.http_small.
SendAnswer: TypeAlias = Callable[[int, RawHeaders, list[Buffer]], None]

_HEADS = 1024
# Of target and headers that a head is kept for, so that all of them stay below 1 MB.
_KEPT_BYTES = 512


@dataclass(frozen=True, slots=True)
class Meaning:
    """What all requests with the same head have in common, whatever rows they bring.

    Attributes:
        body_bytes: Of the body, which is the rows.
        answer_bytes: Likewise of the answer.
        headers: Those of the answer that tell its format.
        request_id: That the client has given; empty where each answer needs its own.
    """

    layer: int
    output: Output
    tokens: int
    dtype: DType
    output_dtype: DType
    body_bytes: int
    answer_bytes: int
    headers: RawHeaders
    request_id: bytes


class SmallRequests:
    """Takes the small requests of the tensor routes.

    Args:
        routes: By path.
    """

    def __init__(self, routes: dict[bytes, SmallRoute]) -> None:
        self._routes = routes

    def __call__(
        self, target: bytes, headers: Headers, body: bytes, answer: SendAnswer
    ) -> Callable[[], None] | None:
        """Begin with a request; see service.http_small.TakesSmall."""
        path, _, query = target.partition(b"?")
        route = self._routes.get(path)
        return None if route is None else route.begin(query, headers, body, answer)

    def meaning(self, target: bytes, headers: Headers) -> Meaning | None:
        """What target and headers of a request that was served mean, if nothing else matters."""
        path, _, query = target.partition(b"?")
        route = self._routes.get(path)
        return None if route is None else route.meaning(query, headers)


class SmallRoute:
    """One tensor route.

    Args:
        endpoint: Where those go that are not taken here.
        named: The headers that a head is made of, where one can serve many requests; None where
            each needs its own.
        path_params: As the router would have found them.
    """

    def __init__(
        self,
        endpoint: TensorEndpoint,
        named: tuple[bytes, ...] | None = None,
        **path_params: str,
    ) -> None:
        self._endpoint = endpoint
        self._named = None if named is None else (*named, b"authorization")
        self._path_params = path_params
        self._kept = lru_cache(_HEADS)(self._make_head)

    def begin(
        self, query: bytes, headers: Headers, body: bytes, answer: SendAnswer
    ) -> Callable[[], None] | None:
        """Queue a request; None where it has to go the usual way."""
        began = time.perf_counter()
        endpoint = self._endpoint
        front = endpoint.front
        try:
            head, job = self._read(query, headers, body)
        except Exception:  # noqa: BLE001 - nothing is hidden, the usual way meets it again
            # What is wrong with it, or with us, is said there.
            return None
        future: asyncio.Future[Answer] | None
        if job.target is not None:
            shared = _SharedRequest(endpoint, job, len(body))
            future, left = asyncio.ensure_future(shared.answer()), shared.left
        else:
            held = front.hold_small(job.tensor.tokens, len(body))
            if held is None:
                return None
            request = endpoint.pending(job, held, len(body))
            future, left = front.submit_small(request), partial(front.cancel, request)
            if future is None:
                return None
        front.in_progress.begun()
        # Nobody has waited for it.
        front.counts.stage("receive", 0.0)
        front.counts.stage("decode", time.perf_counter() - began)
        running = _Running(
            endpoint, head, job, answer, request_id=request_id_of(headers), began=began
        )
        future.add_done_callback(running.ended)
        return left

    def meaning(self, query: bytes, headers: Headers) -> Meaning | None:
        """See SmallRequests.meaning."""
        if self._named is None:
            return None
        body = memoryview(bytes(int(headers[b"content-length"])))
        try:
            head, job = self._read(query, headers, body)
        except (ServiceError, _NotHere):
            # Such as of a format that has a head of its own in the body.
            return None
        rows = memoryview(job.tensor.data)
        if rows.obj is not body.obj or rows.nbytes != body.nbytes or job.timeout_s is not None:
            return None
        data = memoryview(bytes(self._endpoint.answer_bytes(job)))
        reply = head.encode(job, Answer(data, "", 0, 0.0, 0.0), [])
        if len(reply.chunks) != 1 or reply.chunks[0] is not data:
            return None
        return Meaning(
            layer=job.layer,
            output=job.output,
            tokens=job.tensor.tokens,
            dtype=job.tensor.dtype,
            output_dtype=job.output_dtype,
            body_bytes=body.nbytes,
            answer_bytes=data.nbytes,
            headers=reply.headers,
            request_id=given_request_id(headers),
        )

    def _read(self, query: bytes, headers: Headers, body: bytes | memoryview) -> tuple[Head, Job]:
        self._endpoint.front.health.require_ready()
        if b"content-encoding" in headers:
            raise _NotHere
        if self._named is None:
            head = self._endpoint.read_head(self._scope(query), headers)
        else:
            head = self._kept(query, *map(headers.get, self._named))
        if head.parsed_bytes(len(body)) > OFF_LOOP_BYTES:
            raise _NotHere
        job = head.decode(memoryview(body))
        self._endpoint.validate(head, job)
        answer_bytes = self._endpoint.answer_bytes(job)
        # An answer to an input in shared memory may be of any size, and be sent from a slot.
        to_be_sent = job.source is not None and job.target is None
        if to_be_sent or head.written_bytes(answer_bytes) > OFF_LOOP_BYTES:
            raise _NotHere
        return head, job

    def _make_head(self, query: bytes, *values: bytes | None) -> Head:
        assert self._named is not None
        headers = {
            name: value
            for name, value in zip(self._named, values, strict=True)
            if value is not None
        }
        if len(query) + sum(map(len, headers.values())) > _KEPT_BYTES:
            raise _NotHere
        return self._endpoint.read_head(self._scope(query), headers)

    def _scope(self, query: bytes) -> Scope:
        return {"query_string": query, "path_params": self._path_params}


class _NotHere(Exception):
    """There is nothing wrong with a request, but it goes the usual way."""


class _SharedRequest:
    """One whose answer goes to clients' memory; it needs a task, since large copies take a while.

    Args:
        endpoint: Of its route.
        job: What it asks for.
        nbytes: Of its body.
    """

    def __init__(self, endpoint: TensorEndpoint, job: Job, nbytes: int) -> None:
        self._endpoint = endpoint
        self._job = job
        self._nbytes = nbytes
        self._request: PendingRequest | None = None
        self._gone = False

    async def answer(self) -> Answer:
        """Submit it and wait for its end.

        Raises:
            ServiceError: it was refused, or failed.
        """
        front, job = self._endpoint.front, self._job
        request, future = await front.begin_shared(
            job.tensor.tokens, self._nbytes, self._make, job.source, job.target
        )
        self._request = request
        if self._gone:
            front.cancel(request)
        return await future

    def _make(self, held: Holding) -> PendingRequest:
        return self._endpoint.pending(self._job, held, self._nbytes)

    def left(self) -> None:
        """The client has."""
        self._gone = True
        if self._request is not None:
            self._endpoint.front.cancel(self._request)


class _Running:
    """A request whose answer is computed."""

    __slots__ = ("_answer", "_began", "_endpoint", "_head", "_job", "_request_id")

    def __init__(
        self,
        endpoint: TensorEndpoint,
        head: Head,
        job: Job,
        answer: SendAnswer,
        *,
        request_id: bytes,
        began: float,
    ) -> None:
        self._endpoint = endpoint
        self._head = head
        self._job = job
        self._request_id = request_id
        self._began = began
        self._answer = answer

    def ended(self, future: asyncio.Future[Answer]) -> None:
        """Count it and answer it, whatever came of it."""
        front = self._endpoint.front
        try:
            reply = self._reply(future.result())
            # Whoever has an answer finds it counted, whichever process shows the metrics.
            self._endpoint.count(OUTCOME_OK, self._began)
        except ServiceError as error:
            reply = self._refusal(error)
        except Exception as error:
            reply = self._refusal(internal_error(error))
            raise
        finally:
            self._answer(reply.status, reply.headers, reply.chunks)
            front.in_progress.ended()

    def _reply(self, answer: Answer) -> Reply:
        began = time.perf_counter()
        endpoint = self._endpoint
        common = endpoint.common_headers(self._request_id, answer)
        reply = self._head.encode(self._job, answer, common)
        endpoint.front.counts.stage("encode", time.perf_counter() - began)
        return reply

    def _refusal(self, error: ServiceError) -> Reply:
        self._endpoint.count(error.code, self._began)
        return error_reply(error, [(b"x-request-id", self._request_id)])
