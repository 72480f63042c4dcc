"""What a real pod is started with, by the way it hands over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.vllm_cpu.layout import Layout
from loadtest.vllm_cpu.mooncake_on_cpu import ASKS, ASKS_FIRST, do_without_accelerator, link
from loadtest.vllm_cpu.spec import Handover, PodSpec, Role

SPEC = PodSpec("prefill-0", Role.PREFILL, 1, 2, 3, 4)
LAYOUT = Layout(Path("/cache"))


def transfer(spec: PodSpec) -> dict[str, Any]:
    command = spec.command(LAYOUT)
    found: dict[str, Any] = json.loads(command[command.index("--kv-transfer-config") + 1])
    return found


@pytest.mark.parametrize(
    ("way", "connector"),
    [
        (Handover.NIXL, "NixlConnector"),
        (Handover.NIXL_PUSH, "NixlPushConnector"),
        (Handover.MOONCAKE, "MooncakeConnector"),
    ],
)
def test_each_way_has_its_connector(way: Handover, connector: str) -> None:
    found = transfer(replace(SPEC, handover=way))
    assert (found["kv_connector"], found["kv_role"]) == (connector, "kv_producer")


def test_mooncake_speaks_tcp_on_its_own_port_with_its_own_libraries() -> None:
    spec = replace(SPEC, handover=Handover.MOONCAKE)
    assert transfer(spec)["kv_connector_extra_config"] == {"mooncake_protocol": "tcp"}
    variables = spec.variables(LAYOUT)
    assert variables["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "2"
    assert variables["LD_LIBRARY_PATH"] == "/cache/venv/mooncake-libraries"
    assert spec.bootstrap_endpoint == "http://127.0.0.1:2"
    assert "LD_LIBRARY_PATH" not in SPEC.variables(LAYOUT)


def test_libraries_are_linked_and_one_gets_the_name_that_is_looked_for(tmp_path: Path) -> None:
    source = tmp_path / "nixl.libs"
    source.mkdir()
    for name in ("libibverbs-1de1.so.1.14", "libnl-3-ab.so.200"):
        (source / name).write_text(name)
    for _ in range(2):
        link(tmp_path / "links", source)
    assert (tmp_path / "links" / "libibverbs.so.1").read_text() == "libibverbs-1de1.so.1.14"
    assert (tmp_path / "links" / "libnl-3-ab.so.200").is_symlink()


def test_a_wheel_without_the_library_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="0 of libibverbs"):
        link(tmp_path / "links", tmp_path)


def test_one_line_of_the_connector_is_changed_once(tmp_path: Path) -> None:
    source = tmp_path / "connector.py"
    source.write_text(f"a\n        {ASKS}b\n")
    for _ in range(2):
        do_without_accelerator(source)
        assert source.read_text() == f"a\n        {ASKS_FIRST}b\n"


def test_another_connector_is_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "connector.py"
    source.write_text("nothing of the kind\n")
    with pytest.raises(ValueError, match="exactly once"):
        do_without_accelerator(source)
