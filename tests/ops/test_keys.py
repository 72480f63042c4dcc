"""`ppd-gateway keys`, and files that are read again when they change."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.core.keys import hash_of, read_keys
from gateway.ops.cli import main
from gateway.ops.config import load
from gateway.ops.keys import load_keys, load_upstream_key
from gateway.ops.layers import ConfigError
from gateway.ops.profile.pods import look_at
from gateway.ops.watch import WatchedFiles


def test_add_shows_a_fresh_key_and_the_line_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "add", "alice", "--comment", "her\n laptop"]) == 0
    assert main(["keys", "add", "alice"]) == 0
    first, line, second, _ = capsys.readouterr().out.splitlines()
    key = first.removeprefix("key: ")
    assert key.startswith("ppd-")
    assert len(key) == 47, "256 bits"
    assert first != second
    assert line == f"line: {hash_of(key)}  alice  her laptop"
    found = read_keys(line.removeprefix("line: ")).find(key)
    assert found is not None
    assert found.tenant == "alice"


@pytest.mark.parametrize("before", [None, "", "# keys", "# keys\n"])
def test_add_appends_to_a_file_on_a_line_of_its_own(
    before: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    if before is not None:
        file.write_text(before)
    assert main(["keys", "add", "alice", "--file", str(file)]) == 0
    assert main(["keys", "add", "bob", "--file", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"its line was added to {file}"
    ring = load_keys(file)
    assert [getattr(ring.find(line.removeprefix("key: ")), "tenant", None) for line in lines[::2]] == ["alice", "bob"]
    assert "ppd-" not in file.read_text()
    if before is None:
        assert file.stat().st_mode & 0o777 == 0o600


def test_hash_reads_a_key_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("abc\n"))
    assert main(["keys", "hash"]) == 0
    assert capsys.readouterr().out == f"{hash_of('abc')}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["keys", "hash"]) == 2
    assert capsys.readouterr().err == "ppd-gateway: keys hash: a key is visible ASCII without spaces\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a b"], "keys add: a tenant is named with letters, digits and _.@-, up to 64"),
        (["alice", "--file", "/no/such/folder/keys"], "/no/such/folder/keys: No such file or directory"),
    ],
)
def test_what_cannot_be_added_is_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "add", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"ppd-gateway: {said}\n"
    assert printed.out == ""


def test_serving_with_a_bad_file_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    serve = ["serve", "--decode", "http://127.0.0.1:1", "--policy", "local", "--port", "0"]
    assert main([*serve, "--api-keys", str(file)]) == 2
    assert capsys.readouterr().err == f"ppd-gateway: {file}: api_keys: No such file or directory\n"
    file.write_text("sk-secret alice\n")
    assert main([*serve, "--api-keys", str(file)]) == 2
    told = capsys.readouterr().err
    assert told == f"ppd-gateway: {file}: api_keys: line 1 does not begin with a SHA-256 in lower-case hex\n"


def test_serving_where_others_reach_it_without_keys_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--decode", "http://127.0.0.1:1", "--host", "0.0.0.0"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ppd-gateway: flag --host: host: others reach 0.0.0.0: give clients keys (api_keys, ")
    assert told.count("\n") == 1


def test_check_reads_the_keys_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'decode = ["http://d:1"]\npolicy = "local"\napi_keys = "{tmp_path / "keys"}"\n')
    assert main(["config", "check", str(config)]) == 2
    assert capsys.readouterr().err == f"ppd-gateway: {tmp_path / 'keys'}: api_keys: No such file or directory\n"


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="api_keys: not UTF-8 text"):
        load_keys(tmp_path / "keys")


async def test_a_changed_file_is_read_again_without_being_told(tmp_path: Path) -> None:
    file, taken, changed = tmp_path / "file", [], asyncio.Event()

    def take() -> str:
        taken.append(file.read_text())
        changed.set()
        return "it"

    file.write_text("1")
    watched = WatchedFiles("things", [file], take, watch_s=0.01)
    watched.start()
    try:
        for text in ("22", "333"):
            changed.clear()
            (tmp_path / "new").write_text(text)
            os.replace(tmp_path / "new", file)  # noqa: PTH105 - as tools do it that replace files whole
            async with asyncio.timeout(30):
                await changed.wait()
    finally:
        await watched.stop()
    assert taken == ["22", "333"]


async def test_profile_shows_the_pods_their_key(tmp_path: Path) -> None:
    asked: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization"))
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    (tmp_path / "key").write_text("pods-own\n")
    async with TestServer(app) as p, TestServer(app) as d:
        urls = {"prefill": [f"http://127.0.0.1:{p.port}"], "decode": [f"http://127.0.0.1:{d.port}"]}
        cluster = await look_at(load(None, {}, {**urls, "upstream_api_key_file": str(tmp_path / "key")}))
    assert cluster.model == "m"
    assert set(asked) == {"Bearer pods-own"}


def test_the_pods_key_may_come_from_a_variable() -> None:
    flags = {"decode": ["http://d:1"], "upstream_api_key_env": "VLLM_API_KEY"}
    config = load(None, {"VLLM_API_KEY": "secret-1"}, flags)
    assert load_upstream_key(config) == "secret-1"
    assert "secret-1" not in repr(config)
    for environment in ({}, {"VLLM_API_KEY": "secret 1"}):
        with pytest.raises(ConfigError) as caught:
            load(None, environment, flags)
        assert str(caught.value) == (
            "flag --upstream-api-key-env: upstream_api_key_env: the variable it names does not hold a key: "
            "a key is visible ASCII without spaces"
        )
    with pytest.raises(ConfigError, match="there is an upstream_api_key_file already"):
        load(None, {"VLLM_API_KEY": "x"}, {**flags, "upstream_api_key_file": "f"})
