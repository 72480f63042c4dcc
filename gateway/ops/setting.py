"""What a row in a table of settings is.

Rule of this room: one row gives a key its flag, its variable, its check and its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.ops.checks import Check


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. `repeatable` settings are lists: the flag may come several times, the variable is comma-separated
    (unless its help says otherwise)."""

    key: str
    check: Check
    default: Any
    help: str
    metavar: str
    repeatable: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def variable(self) -> str:
        return "PPD_" + self.key.replace(".", "_").upper()
