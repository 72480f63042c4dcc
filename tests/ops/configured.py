"""A configuration from a file, an environment and flags, or the line that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.ops.config import Config, load
from gateway.ops.layers import ConfigError
from gateway.ops.settings import SETTINGS

DECODE: dict[str, Any] = {"decode": ["http://d0:8200"]}


def configured(
    file: str | None = None, environment: dict[str, str] | None = None, *, folder: Path | None = None, **flags: Any
) -> Config:
    """Load with a file of that text; keyword arguments are flags by key, with `__` for the dot."""
    path = None
    if file is not None:
        assert folder is not None
        path = folder / "gateway.toml"
        path.write_text(file, encoding="utf-8")
    given = {setting.key: None for setting in SETTINGS} | {
        key.replace("__", "."): value for key, value in flags.items()
    }
    return load(path, environment or {}, given)


def complaint(file: str | None = None, environment: dict[str, str] | None = None, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(file, environment, **more)
    line = str(caught.value)
    assert "\n" not in line
    return line
