"""A request body as its top-level fields, each still the raw bytes the client sent.

Rule of this room: decode once, look into what matters, re-join the rest untouched. Re-serialising what we do
not understand would reorder tool schemas and change number formats, hence token ids, hence the prefix cache.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.errors import BadRequestError

Fields = dict[str, msgspec.Raw]

TRUE = msgspec.Raw(b"true")
FALSE = msgspec.Raw(b"false")
NULL = msgspec.Raw(b"null")

_TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})

_decoder = msgspec.json.Decoder(Fields)
_string_decoder = msgspec.json.Decoder(str)
split = _decoder.decode
"""A JSON object inside another as its fields. Raises msgspec.DecodeError, RecursionError."""

_encoder = msgspec.json.Encoder()
join = _encoder.encode
"""Fields as JSON again: same order, every value byte for byte as it was."""


def parse(body: bytes) -> Fields:
    """Split a JSON object into its top-level fields. The last of duplicate keys wins, as in Python's `json`.

    Raises BadRequestError for anything but a well-formed UTF-8 JSON object.
    """
    try:
        fields = _decoder.decode(body)
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError:
        raise BadRequestError("The request body must be a JSON object.") from None
    except msgspec.DecodeError as error:
        raise BadRequestError(f"The request body is not valid JSON: {error}.") from None
    except UnicodeDecodeError as error:
        raise BadRequestError(f"The request body is not valid UTF-8 (byte {error.start}).") from None
    except RecursionError:
        raise BadRequestError("The request body is nested too deeply.") from None
    return fields


def raw(value: object) -> msgspec.Raw:
    """Encode a value of our own for use as a field."""
    return msgspec.Raw(_encoder.encode(value))


def is_null(value: msgspec.Raw | None) -> bool:
    """True for a field that is absent or JSON null."""
    return value is None or value == NULL


def given(fields: Fields, name: str) -> msgspec.Raw | None:
    """The field as it came; None when it is absent or JSON null."""
    value = fields.get(name)
    return None if value == NULL else value


def value_of(fields: Fields, name: str) -> Any:
    """The decoded value of one field; None when it is absent, null, or not decodable."""
    value = fields.get(name)
    if value is None:
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None


def string_of(fields: Fields, name: str) -> str | None:
    """The field as a string, or None when it is anything else. The pod judges types, not the gateway."""
    if name not in fields:
        return None
    try:
        return _string_decoder.decode(fields[name])
    except msgspec.DecodeError:
        return None


def integer_of(fields: Fields, name: str) -> int | None:
    """The field as an integer, or None when it is none: 2, 2.0 and "2" are, as pydantic has it on the pods."""
    if name not in fields:
        return None
    value = value_of(fields, name)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def is_true(value: Any) -> bool:
    """What pydantic, hence a pod, takes for true."""
    return value.lower() in _TRUE_WORDS if isinstance(value, str) else value == 1


def flag_of(fields: Fields, name: str) -> bool:
    """The field as a boolean; False when it is absent or no boolean."""
    value = fields.get(name)
    if value is None or value == FALSE:
        return False
    return value == TRUE or is_true(value_of(fields, name))
