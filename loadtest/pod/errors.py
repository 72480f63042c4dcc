"""Errors as a vLLM pod words them.

Rule of this room: every refusal is an `ApiError`, which knows its status and its body
(`{"error": {"message", "type", "param", "code"}}`, vllm/entrypoints/serve/engine/protocol.py).
"""

from http import HTTPStatus
from typing import Any


class ApiError(Exception):
    """A refusal with an HTTP status and the OpenAI-style body."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A value vLLM itself finds wrong (`VLLMValidationError`)."""
    return ApiError(400, message, "BadRequestError", param)


def bad_value(message: str, parameter: str, value: Any = None) -> ApiError:
    """The same with the parameter's name, as `VLLMValidationError.__str__` spells parameter and value out."""
    extras = [f"parameter={parameter}"] + ([f"value={value}"] if value is not None else [])
    return bad_request(f"{message} ({', '.join(extras)})", parameter)


def invalid_body(message: str, param: str | None) -> ApiError:
    """A body that does not fit the schema (FastAPI's `RequestValidationError`)."""
    return ApiError(400, message, HTTPStatus.BAD_REQUEST.phrase, param)


def wrong_field(field: str, kind: str, problem: str, value: Any) -> ApiError:
    """One pydantic error, worded as vLLM's validation handler words it. An empty `field` is the body itself."""
    shown = value if isinstance(value, str) else str(value)
    if isinstance(value, list | dict):
        shown = f"<{type(value).__name__} of {len(value)} items>"
    where = f"body.{field}" if field else "body"
    entry = {"type": kind, "loc": where, "msg": problem, "input": shown}
    return invalid_body(f"1 validation error:\n  {entry}", where)


def not_found(model: str, served: str) -> ApiError:
    return ApiError(404, f"The model `{model}` does not exist. Valid aliases: {served}.", "NotFoundError", "model")


def generation_failed() -> ApiError:
    """A request that ended with finish reason `error` (a failed KV read, with `kv_load_failure_policy` fail)."""
    return ApiError(500, "Internal server error", "InternalServerError")
