"""Errors a client can be told about.

Rule of this room: every error here knows its HTTP status and the OpenAI-style body it becomes, and its
message never holds text of the client's request.
"""

from __future__ import annotations

import msgspec


class ErrorBody(msgspec.Struct, frozen=True):
    """The `error` object of OpenAI's API (vLLM: `vllm/entrypoints/openai/engine/protocol.py`)."""

    message: str
    type: str
    param: str | None = None
    code: int | str | None = None


class ClientVisibleError(Exception):
    """Base of all errors that end as an HTTP answer; subclasses fix `status` and `kind`."""

    status = 500
    kind = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = headers or {}

    def body(self) -> bytes:
        """The JSON body, `{"error": {message, type, param, code}}`."""
        return error_body(self.message, self.kind, self.status, self.param)


class BadRequestError(ClientVisibleError):
    status = 400
    kind = "invalid_request_error"


class UnauthorizedError(ClientVisibleError):
    """No key, or one that is nobody's. vLLM says the same word, without an error object around it."""

    status = 401
    kind = "authentication_error"


class UnknownPathError(ClientVisibleError):
    status = 404
    kind = "not_found_error"


class UnknownResponseError(UnknownPathError):
    """vLLM's own answer (`responses/serving.py`, _make_not_found_error), less the id."""

    kind = "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("Response with that id not found.", param="response_id")


class UnknownModelError(UnknownPathError):
    """As OpenAI says it of a model that a key may not use: nobody learns which models there are."""

    def __init__(self) -> None:
        super().__init__("The model does not exist, or you do not have access to it.", param="model")


class TooManyError(ClientVisibleError):
    """The client, or everybody together, asks for more than there is; `Retry-After` tells when to come back."""

    status = 429
    kind = "rate_limit_error"


class WrongMethodError(ClientVisibleError):
    status = 405
    kind = "invalid_request_error"


class BodyTooLargeError(ClientVisibleError):
    status = 413
    kind = "invalid_request_error"


class HeadersTooLargeError(ClientVisibleError):
    status = 431
    kind = "invalid_request_error"


class RequestTimeoutError(ClientVisibleError):
    status = 408
    kind = "invalid_request_error"


class WrongContentTypeError(ClientVisibleError):
    status = 415
    kind = "invalid_request_error"


class PodFailedError(ClientVisibleError):
    """Every pod that could have answered was tried and failed before the first byte."""

    status = 502
    kind = "upstream_error"


class NoPodError(ClientVisibleError):
    """No pod is up that could take the request; `Retry-After` tells when to come back."""

    status = 503
    kind = "service_unavailable_error"


class PodTimeoutError(ClientVisibleError):
    status = 504
    kind = "upstream_timeout_error"


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """Encode an OpenAI-style error body."""
    return msgspec.json.encode({"error": ErrorBody(message, kind, param, code)})


def error_event(message: str, kind: str, code: int) -> bytes:
    """An SSE event that the official `openai` client raises as `APIError`, for a stream that broke."""
    return b"data: " + error_body(message, kind, code) + b"\n\n"
