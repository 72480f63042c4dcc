"""Request bodies: JSON or the error for what is not.

Rule of this room: FastAPI's two complaints before any field is looked at (media type, JSON syntax), as vLLM words them.
"""

import json
from typing import Any

from aiohttp import web

from loadtest.pod.errors import ApiError, invalid_body, wrong_field


def read_json(request: web.Request, raw: bytes) -> tuple[Any, ApiError | None]:
    """(parsed body, None) or (None, the refusal)."""
    if request.content_type.lower() != "application/json":
        problem = "Unsupported Media Type: Only 'application/json' is allowed"
        return None, invalid_body(f"1 validation error:\n  {problem}", None)
    if not raw:
        return None, wrong_field("", "missing", "Field required", None)
    try:
        return json.loads(raw), None
    except json.JSONDecodeError as error:
        entry = {
            "type": "json_invalid",
            "loc": f"body.{error.pos}",
            "msg": "JSON decode error",
            "input": "<dict of 0 items>",
            "ctx": {"error": error.msg},
        }
        return None, invalid_body(f"1 validation error:\n  {entry}", f"body.{error.pos}")
    except UnicodeDecodeError:
        return None, ApiError(400, "There was an error parsing the body", "Bad Request")
