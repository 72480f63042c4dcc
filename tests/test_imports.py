"""The arrows between the rooms, read from the source of every module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("gateway", "lut", "loadtest", "tests")
MAX_LINES = 400

ALLOWED = {
    "gateway.wire": ("gateway.wire",),
    "gateway.core": ("gateway.core", "lut.table"),
    "gateway.net": ("gateway.net", "gateway.core", "gateway.wire"),
    "gateway.ops": ("gateway", "lut"),
    "gateway": ("gateway",),
    "lut": ("lut",),
    "loadtest": ("loadtest", "gateway", "lut"),
}
"""What of ours a room may import. The first room that a module lies in counts."""

NOT_IN = {
    "gateway.wire": ("asyncio", "socket", "time", "datetime", "logging", "random", "secrets", "aiohttp", "httpx"),
    "gateway.core": ("asyncio", "socket", "time", "datetime", "logging", "random", "secrets", "aiohttp", "httpx"),
}
"""What else it must not import: core and wire are sans-I/O and have no clock and no dice of their own."""

SEAMS = {
    "aiohttp.web": ("gateway.net.server", "gateway.ops.admin.server"),
    "opentelemetry": ("gateway.ops.tracing",),
}
"""Libraries that no request's path may depend on, and the only modules of the gateway that know them."""


def modules() -> list[tuple[str, Path]]:
    """(dotted name, file) of every module under gateway, lut and loadtest."""
    found = []
    for room in ("gateway", "lut", "loadtest"):
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


each_module = pytest.mark.parametrize(
    ("module", "path"), [pytest.param(module, path, id=module) for module, path in modules()]
)


def imports_of(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """The dotted names a source imports, wherever in it the import stands; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = module.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
                base = ".".join([*up, base]).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def faults(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of a module, one sentence each."""
    room = next(room for room in ALLOWED if within(module, room))
    found = []
    for name in imports_of(module, source, is_package=is_package):
        if within_any(name, OURS) and not within_any(name, ALLOWED[room]):
            found.append(f"{module} imports {name}: {room} may import {', '.join(ALLOWED[room])}")
        for outer, banned in NOT_IN.items():
            if within(module, outer) and within_any(name, banned):
                found.append(f"{module} imports {name}: {outer} must not")
        for library, knowing in SEAMS.items():
            if within(module, "gateway") and within(name, library) and module not in knowing:
                found.append(f"{module} imports {name}: only {', '.join(knowing)} may")
    return found


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def within_any(name: str, rooms: tuple[str, ...]) -> bool:
    return any(within(name, room) for room in rooms)


@each_module
def test_a_module_imports_only_what_its_room_may(module: str, path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert faults(module, source, is_package=path.name == "__init__.py") == []


@each_module
def test_a_module_has_at_most_400_lines(module: str, path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_a_test_file_has_at_most_400_lines() -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "tests").rglob("*.py")
    }
    assert len(lines) > 200, "they were looked at"
    assert {name for name, count in lines.items() if count > MAX_LINES} == set()


def test_all_rooms_were_looked_at() -> None:
    names = {name for name, _ in modules()}
    assert {"gateway.core.decide", "gateway.wire.sse", "gateway.net.server", "gateway.ops.cli", "lut"} <= names
    assert any(name.startswith("loadtest.") for name in names)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gateway.wire.x", "from gateway.core.pods import Pod"),
        ("gateway.wire.x", "import gateway.net.relay"),
        ("gateway.core.x", "from gateway.wire.fields import parse"),
        ("gateway.core.x", "from gateway import net"),
        ("gateway.core.x", "from ..wire import fields"),
        ("gateway.core.x", "from lut import builder"),
        ("gateway.core.x", "import time"),
        ("gateway.core.x", "from time import monotonic"),
        ("gateway.core.x", "import asyncio.locks"),
        ("gateway.core.x", "def f() -> None:\n    import random"),
        ("gateway.core.x", "from logging import getLogger"),
        ("gateway.net.x", "from gateway.ops import config"),
        ("gateway.net.x", "import lut.table"),
        ("gateway.net.x", "from aiohttp import web"),
        ("gateway.net.x", "import aiohttp.web"),
        ("gateway.net.x", "from aiohttp.web import Response"),
        ("gateway.net.x", "from opentelemetry.trace import Span"),
        ("gateway.ops.x", "from loadtest.pod import simulated"),
        ("gateway.ops.x", "if True:\n    from tests.net import world"),
        ("lut.x", "from tests import anything"),
        ("loadtest.x", "import tests.net.world"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert len(faults(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gateway.wire.x", "import msgspec\nfrom gateway.wire.fields import parse\nfrom . import usage"),
        ("gateway.core.x", "from lut.table import Table\nfrom gateway.core.pods import Pod\nimport xxhash, enum"),
        ("gateway.net.x", "import aiohttp\nimport time\nfrom gateway.core.pods import Pod"),
        ("gateway.net.server", "from aiohttp import web"),
        ("gateway.ops.x", "from gateway.net.gateway import Gateway\nfrom gateway.wire import contract"),
        ("loadtest.x", "from gateway.core.decide import decide\nimport timeit\nfrom aiohttp import web"),
        ("gateway.core.x", "import timeit"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert faults(module, source) == []


@pytest.mark.parametrize(
    ("module", "is_package", "source", "name"),
    [
        ("gateway.core.x", False, "from .pods import Pod", "gateway.core.pods.Pod"),
        ("gateway.core.x", False, "from . import pods", "gateway.core.pods"),
        ("gateway.core.x", False, "from .. import net", "gateway.net"),
        ("gateway.core", True, "from .pods import Pod", "gateway.core.pods.Pod"),
        ("gateway.core", True, "from ..wire import sse", "gateway.wire.sse"),
    ],
)
def test_a_relative_import_is_resolved(module: str, is_package: bool, source: str, name: str) -> None:
    assert list(imports_of(module, source, is_package=is_package)) == [name]


def test_core_and_wire_need_no_package_but_these() -> None:
    third_party = {
        name.partition(".")[0]
        for module, path in modules()
        if within_any(module, ("gateway.core", "gateway.wire"))
        for name in imports_of(module, path.read_text(encoding="utf-8"))
        if name.partition(".")[0] not in {*sys.stdlib_module_names, *OURS}
    }
    assert third_party <= {"msgspec", "xxhash", "numpy"}
