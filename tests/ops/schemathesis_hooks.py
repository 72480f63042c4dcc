"""Loaded by schemathesis: a stream of decisions has no end, so it is not asked for."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Take `follow` out of what is about to be asked."""
    if case.path == "/api/v1/decisions" and case.query:
        case.query.pop("follow", None)
