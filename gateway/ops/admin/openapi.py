"""The OpenAPI document, printed from the table of routes.

Rule of this room: nothing about a call is written here; what the document says is what `routes` and `schemas` say.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.ops.admin.routes import ROUTES, Route
from gateway.ops.admin.schemas import ErrorAnswer, Nothing
from gateway.version import VERSION

_REF = "#/components/schemas/{name}"
_WORDS = {
    200: "What was asked for",
    201: "Done",
    400: "The request is not as this document says",
    401: "The token is missing or wrong",
    403: "The Host or the Origin is not this machine's",
    404: "There is no such thing",
    409: "Not in this state",
    415: "The body is not declared as JSON",
    422: "Refused; what was in use stays",
    429: "Too many readers",
}


def document(*, with_token: bool) -> dict[str, Any]:
    """OpenAPI 3.1. with_token: calls need the bearer token."""
    types: list[Any] = [ErrorAnswer]
    for route in ROUTES:
        types += [route.answer, route.query, *([] if route.body is None else [route.body])]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation = _operation(route, by_type, components, with_token=with_token)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "ppd-gateway admin API", "version": VERSION},
        "paths": paths,
        "components": {"schemas": {name: shape for name, shape in components.items() if name != "Nothing"}},
    }
    if with_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _operation(
    route: Route, by_type: dict[Any, Any], components: dict[str, Any], *, with_token: bool
) -> dict[str, Any]:
    answers: dict[str, Any] = {str(route.status): _content(_WORDS[route.status], by_type[route.answer])}
    if route.streams:
        answers[str(route.status)]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    errors = {400, 401 if with_token else 403, *route.errors, *((415,) if route.body is not None else ())}
    for status in sorted(errors):
        answers[str(status)] = _content(_WORDS[status], by_type[ErrorAnswer])
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "responses": answers}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.query is not Nothing:
        shape = components[route.query.__name__]
        for name, schema in shape["properties"].items():
            required = name in shape.get("required", ())
            parameters.append({"name": name, "in": "query", "required": required, "schema": _given(schema)})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content("", by_type[route.body])}
        del operation["requestBody"]["description"]
    return operation


def _content(words: str, schema: Any) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter's value as it is when it is given: what is left out has no null."""
    choices = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return choices[0] if len(choices) == 1 else schema
