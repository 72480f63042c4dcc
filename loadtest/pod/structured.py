"""Structured output: one valid JSON text per schema.

Rule of this room: the text depends on the schema alone. Simple schemas only (types, properties, required, items, enum,
const, anyOf, $ref into $defs); what is not understood becomes an empty object.
"""

import json
from collections.abc import Mapping
from typing import Any

_SIMPLE: dict[str, Any] = {"string": "value", "integer": 1, "number": 1.5, "boolean": True, "null": None}


def text_for_format(response_format: Mapping[str, Any] | None) -> str | None:
    """JSON text for a `response_format`; None when it asks for plain text."""
    kind = response_format.get("type") if response_format else None
    if kind == "json_object":
        return json.dumps({"answer": "value"})
    if kind == "json_schema" and response_format is not None:
        return text_for_schema(response_format["json_schema"].get("schema") or {})
    return None


def text_for_schema(schema: Mapping[str, Any]) -> str:
    return json.dumps(_value(schema, schema, 0))


def _value(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > 16:
        return {}
    if "$ref" in schema:
        return _value(root.get("$defs", {}).get(schema["$ref"].rsplit("/", 1)[-1]), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for either in ("anyOf", "oneOf", "allOf"):
        if schema.get(either):
            return _value(schema[either][0], root, depth + 1)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "array":
        return [_value(schema.get("items"), root, depth + 1)] * max(1, schema.get("minItems", 1))
    if kind in _SIMPLE:
        if kind == "string" and len("value") < schema.get("minLength", 0):
            return "v" * schema["minLength"]
        if kind in ("integer", "number") and "minimum" in schema:
            return schema["minimum"]
        return _SIMPLE[kind]
    properties = schema.get("properties", {})
    return {name: _value(properties[name], root, depth + 1) for name in properties}
