"""Where things lie in the cache folder.

Rule of this room: paths only. Nothing is created, read or run here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "LOADTEST_VLLM_HOME"
PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Layout:
    """The cache folder and the names inside it."""

    home: Path

    @classmethod
    def default(cls) -> Layout:
        """`$LOADTEST_VLLM_HOME`, or `~/.cache/ppd-gateway`."""
        return cls(Path(os.environ.get(HOME_VARIABLE) or "~/.cache/ppd-gateway").expanduser().absolute())

    @property
    def venv(self) -> Path:
        return self.home / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def mooncake_libraries(self) -> Path:
        """What MooncakeConnector's pods find besides the system's libraries."""
        return self.venv / "mooncake-libraries"

    @property
    def model(self) -> Path:
        return self.home / "model"

    @property
    def stamps(self) -> Path:
        return self.home / "stamps"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def lock(self) -> Path:
        return self.home / "build.lock"

    @property
    def pods(self) -> Path:
        """Default state directory of `up`: state file and pod logs."""
        return self.home / "pods"
