"""The programs in C and the environments of other proxies, each made at first use.

Rule of this room: what is made lies in the cache folder under a name that says what it was made from, and appears
there whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loadtest.vllm_cpu.layout import Layout

SOURCES = Path(__file__).resolve().parent
FLAGS = ("-O2", "-std=gnu11", "-Wall")


class CannotBuildError(Exception):
    """Why a program or an environment could not be made, for people."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The compiled programs."""

    mock: Path
    load: Path


def cache() -> Path:
    """Where made things lie."""
    return Layout.default().home / "bench"


def compiler() -> str | None:
    """The C compiler: `$CC`, or `cc`; None when there is none."""
    return shutil.which(os.environ.get("CC") or "cc")


def tools(home: Path | None = None) -> Tools:
    """Compile what is not compiled yet. Raises CannotBuildError."""
    folder = home or cache()
    return Tools(_compiled("mock", folder), _compiled("load", folder))


def _compiled(name: str, folder: Path) -> Path:
    sources = [SOURCES / f"{name}.c", SOURCES / "common.h", *([SOURCES / "faults.h"] if name == "mock" else [])]
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for source in sources:
        digest.update(source.read_bytes())
    program = folder / f"{name}-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    found = compiler()
    if found is None:
        raise CannotBuildError(
            "the benchmark of the proxy is driven by two small C programs, and there is no C compiler `cc` here: "
            "install one (apt-get install gcc libc6-dev) or name one in $CC"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / name
        done = subprocess.run([found, *FLAGS, "-o", made, sources[0]], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuildError(f"{found} could not compile {sources[0]}:\n{done.stderr.strip()}")
        made.replace(program)
    return program


def environment(name: str, requirements: tuple[str, ...]) -> Path:
    """The Python of an environment of its own with these packages. Raises CannotBuildError."""
    digest = hashlib.sha256("\0".join((sys.version, *requirements)).encode()).hexdigest()[:16]
    folder = cache() / f"{name}-{digest}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if ready.exists():
        return python
    if folder.exists():
        shutil.rmtree(folder)
    print(f"making the environment of {name} in {folder} ...", file=sys.stderr)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", *requirements],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotBuildError(f"{name} cannot be installed: {error}") from error
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
            raise CannotBuildError(f"{name} cannot be installed: {last}")
    ready.touch()
    return python
