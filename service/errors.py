"""Everything that can go wrong on purpose, with the status and the slug a client sees.

    ServiceError
    ├── RequestError                 the client's doing (4xx); nothing was changed by the request
    │   ├── InvalidRequest           400 invalid
    │   ├── Unauthorized             401 unauthorized
    │   ├── NotFound                 404 not_found
    │   ├── NotAcceptable            406 not_acceptable
    │   ├── ReceiveTimeout           408 receive_timeout
    │   ├── TooLarge                 413 too_large
    │   ├── UnsupportedType          415 unsupported_type
    │   └── QueueFull                429 queue_full
    ├── Cancelled                    499 cancelled: the client left; counted, never sent
    ├── EngineError                  500 engine_error: a batch failed, the engine goes on
    │   └── EngineDead               500 engine_dead: the engine must not be used again
    ├── Unavailable                  503 unavailable: starting, draining or dead
    ├── DeadlineExceeded             504 deadline: passed while the request waited
    └── StartError                   refused before serving: settings or checkpoint
        ├── ConfigError
        └── CheckpointError

Messages name the argument, the rule and the value, in that order.
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Base of all errors raised on purpose.

    `status` is the HTTP status, `code` the slug in the body, and also the `outcome` label under
    which the request is counted.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    retry_after_s: ClassVar[int | None] = None


class RequestError(ServiceError):
    """The request cannot be served as it was sent."""

    status = 400
    code = "invalid"


class InvalidRequest(RequestError):
    """Malformed body, header, parameter or shape."""


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    status = 401
    code = "unauthorized"


class NotFound(RequestError):
    """No such model, layer or path."""

    status = 404
    code = "not_found"


class NotAcceptable(RequestError):
    """`Accept` names no format that the service can answer in."""

    status = 406
    code = "not_acceptable"


class ReceiveTimeout(RequestError):
    """The body did not arrive in time; its slot went back to the arena."""

    status = 408
    code = "receive_timeout"


class TooLarge(RequestError):
    """Body, decompressed body, JSON or token count over a limit."""

    status = 413
    code = "too_large"


class UnsupportedType(RequestError):
    """Content type or content encoding that the service does not read."""

    status = 415
    code = "unsupported_type"


class QueueFull(RequestError):
    """The queue's bound in tokens or bytes is reached."""

    status = 429
    code = "queue_full"
    retry_after_s = 1


class Cancelled(ServiceError):
    """The client left before its answer was ready; never sent, nobody is there to read it."""

    status = 499
    code = "cancelled"


class EngineError(ServiceError):
    """The engine failed on a batch; never the client's fault, so never a 4xx."""

    status = 500
    code = "engine_error"


class EngineDead(EngineError):
    """The engine can run nothing any more (a sticky CUDA error): the process has to end."""

    code = "engine_dead"


class Unavailable(ServiceError):
    """Not ready yet, draining, or the engine is dead."""

    status = 503
    code = "unavailable"
    retry_after_s = 1


class DeadlineExceeded(ServiceError):
    """The request's deadline passed while it waited in the queue; it was not executed."""

    status = 504
    code = "deadline"


class StartError(ServiceError):
    """The service refuses to start; the message is the whole story for the user."""

    code = "start"


class ConfigError(StartError):
    """A setting, or a combination of settings, makes no sense."""


class CheckpointError(StartError):
    """The checkpoint cannot be served."""


OUTCOME_OK = "ok"


def outcomes() -> tuple[str, ...]:
    """Every end that a request can have: `ok`, and the code of each class that is not a start's."""
    found = {OUTCOME_OK: None, ServiceError.code: None}
    classes: list[type[ServiceError]] = [ServiceError]
    while classes:
        current = classes.pop(0)
        if current.code != "start":
            found[current.code] = None
            classes.extend(current.__subclasses__())
    return tuple(found)
