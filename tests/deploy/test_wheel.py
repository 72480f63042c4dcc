"""The wheel: built from a copy of the sources, installed into an environment of its own, and used there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from pathlib import Path

import pytest

from gateway.version import VERSION

ROOT = Path(__file__).parents[2]
ROOMS = ("gateway", "lut", "loadtest")
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built offline, with the setuptools of this environment; the checkout itself is not touched."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for room in ROOMS:
        shutil.copytree(ROOT / room, sources / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(sources)]
    subprocess.run([*pip, *build], check=True, timeout=PATIENCE_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The bin folder of an environment with the wheel in it; what it depends on is borrowed from this one."""
    home = wheel.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=PATIENCE_S)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "-q"]
    install = ["install", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=PATIENCE_S)
    own = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home / "bin"


def run(installed: Path, *argv: str) -> str:
    """What a command of that environment prints, far from the checkout."""
    command = [str(installed / argv[0]), *argv[1:]]
    done = subprocess.run(
        command, cwd=installed, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("PPD_", "PYTHON"))}


def test_everything_that_lies_in_the_packages_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    sources = wheel.parent / "sources"
    there = {
        path.relative_to(sources).as_posix()
        for room in ROOMS
        for path in (sources / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there - packed == set()
    assert {f"{room}/py.typed" for room in ROOMS} <= packed
    assert {name for name in packed - there if ".dist-info/" not in name} == set()
    assert wheel.name == f"ppd_gateway-{VERSION}-py3-none-any.whl"
    assert f"ppd_gateway-{VERSION}.dist-info/licenses/LICENSE" in packed


def test_the_command_is_the_wheels_own(installed: Path) -> None:
    assert run(installed, "ppd-gateway", "--version") == f"ppd-gateway {VERSION}\n"
    where = run(installed, "python", "-c", "import gateway, lut, loadtest; print(gateway.__file__, lut.__file__)")
    assert all(Path(path).is_relative_to(installed.parent) for path in where.split())


def test_its_data_comes_along(installed: Path) -> None:
    said = run(installed, "ppd-gateway", "explain", "--ctx", "3000", "--new", "200", "--out", "128", "--qps", "4")
    assert "table: SIMULATED" in said
    assert "loadtest" in run(installed, "python", "-c", "from loadtest.engine import profile; print(profile.__name__)")
    assert "instant" in run(installed, "python", "-c", "from loadtest.engine import profile; print(profile.names())")


def test_it_serves(installed: Path) -> None:
    argv = [str(installed / "ppd-gateway"), "serve", "--decode", "http://127.0.0.1:9", "--port", "0"]
    with subprocess.Popen(argv, cwd=installed, env=environment(), stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stderr is not None
        try:
            line = next(line for line in gateway.stderr if " on http://" in line)
            found = re.search(r"on (http://\S+),", line)
            assert found is not None
            with urllib.request.urlopen(found[1] + "/health", timeout=60) as answer:
                assert answer.status == 200
            gateway.send_signal(signal.SIGTERM)
            gateway.stderr.read()
            assert gateway.wait(PATIENCE_S) == 0
        finally:
            gateway.kill()
