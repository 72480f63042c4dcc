"""Debian packages that tests need, installed where that can be."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable


def install(packages: list[str], done: Callable[[], bool], limit_s: float) -> bool:
    """Install them, quietly, without starting a service; False when `done` is not so in the end.

    limit_s: for each step.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    quiet = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    plain = ["install", "-y", "--no-install-recommends", *packages]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for steps in ([plain], [["update"], plain]):
        try:
            for step in steps:
                subprocess.run([*quiet, *step], check=True, capture_output=True, timeout=limit_s, env=environment)
        except (subprocess.SubprocessError, OSError):
            continue
        if done():
            return True
    return False
