"""Errors are OpenAI's, with the status that belongs to each."""

from __future__ import annotations

import json

import pytest

from gateway.wire import errors


@pytest.mark.parametrize(
    ("kind", "status", "word"),
    [
        (errors.BadRequestError, 400, "invalid_request_error"),
        (errors.UnauthorizedError, 401, "authentication_error"),
        (errors.UnknownPathError, 404, "not_found_error"),
        (errors.WrongMethodError, 405, "invalid_request_error"),
        (errors.BodyTooLargeError, 413, "invalid_request_error"),
        (errors.TooManyError, 429, "rate_limit_error"),
        (errors.RequestTimeoutError, 408, "invalid_request_error"),
        (errors.HeadersTooLargeError, 431, "invalid_request_error"),
        (errors.WrongContentTypeError, 415, "invalid_request_error"),
        (errors.ClientVisibleError, 500, "internal_error"),
        (errors.PodFailedError, 502, "upstream_error"),
        (errors.NoPodError, 503, "service_unavailable_error"),
        (errors.PodTimeoutError, 504, "upstream_timeout_error"),
    ],
)
def test_an_error_knows_its_status_and_its_body(kind: type[errors.ClientVisibleError], status: int, word: str) -> None:
    error = kind("It's \u201codd\u201d.", param="n", headers={"Retry-After": "2"})
    assert error.status == status
    assert error.headers == {"Retry-After": "2"}
    assert json.loads(error.body()) == {
        "error": {"message": "It's \u201codd\u201d.", "type": word, "param": "n", "code": status}
    }


def test_every_error_is_in_the_table_above() -> None:
    assert len(errors.ClientVisibleError.__subclasses__()) == 12


def test_a_broken_stream_ends_with_one_whole_event() -> None:
    event = errors.error_event("broke\n\nhere", "upstream_error", 502)
    assert event == (
        b'data: {"error":{"message":"broke\\n\\nhere","type":"upstream_error","param":null,"code":502}}\n\n'
    )
