"""Pods from a file: what it may hold, and that a bad one changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.core.pods import Role
from gateway.core.settling import Found, Standing
from gateway.ops.discovery.files import FileSource, read_pods

TWO = [{"url": "http://P:8100/", "role": "prefill"}, {"url": "http://d:8200", "role": "decode", "drain": True}]
FOUND = [Found("http://p:8100", Role.PREFILL), Found("http://d:8200", Role.DECODE, Standing.UNREADY)]


def written(folder: Path, content: object, name: str = "pods.json") -> Path:
    path = folder / name
    text = content if isinstance(content, str) else json.dumps(content)
    temporary = folder / ".new"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def test_json_as_a_list_and_under_a_key(tmp_path: Path) -> None:
    assert read_pods(written(tmp_path, TWO)) == FOUND
    assert read_pods(written(tmp_path, {"pods": TWO, "comment": "by hand"})) == FOUND
    assert read_pods(written(tmp_path, [])) == []


def test_toml(tmp_path: Path) -> None:
    text = '[[pods]]\nurl = "http://p:8100"\nrole = "prefill"\n[[pods]]\nurl = "http://d:8200"\ndrain = true\n'
    assert read_pods(written(tmp_path, text + 'labels = {"ppd.role" = "decode"}\n', "pods.toml")) == FOUND


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not valid JSON: Expecting value"),
        ("[" * 100_000, "not valid JSON"),
        ('"pods"', "must be a list of pods, or hold one under the key pods"),
        ({"pods": {}}, "must be a list of pods, or hold one under the key pods"),
        ([7], "pod 1: must be a table with url and role"),
        ([*TWO, {"url": "http://d:1", "rule": "decode"}], "pod 3: unknown key 'rule'"),
        ([{"url": "http://d:1", "role": "cook"}], "pod 1: role must be one of prefill, decode, replica"),
        ([{"url": "http://d:1", "role": ["decode"]}], "pod 1: role must be one of prefill, decode, replica"),
        ([{"url": "http://d:1"}], "pod 1: role must be one of"),
        ([{"url": "http://d:1", "labels": 3}], "pod 1: labels must be a table"),
        ([{"url": "http://d:1", "role": "decode", "drain": 1}], "pod 1: drain must be true or false"),
        ([{"url": "d:1", "role": "decode"}], "pod 1: url: 'd:1' is not a URL"),
        ([{"role": "decode"}], "pod 1: url: must be a URL"),
        ([TWO[0], {"url": "http://p:8100", "role": "decode"}], "pod 2: http://p:8100 is named twice"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, content: object, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_pods(written(tmp_path, content))
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_bad_toml_and_bad_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not valid TOML"):
        read_pods(written(tmp_path, "[[pods", "pods.toml"))
    (tmp_path / "pods.json").write_bytes(b"\xff\xfe[")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        read_pods(tmp_path / "pods.json")


class Ear:
    def __init__(self) -> None:
        self.heard: list[object] = []
        self.changed = asyncio.Event()

    def answer(self, found: Iterable[Found]) -> None:
        self.heard.append([each.url for each in found])
        self.changed.set()

    def failed(self, why: str) -> None:
        self.heard.append(why)
        self.changed.set()

    def remark(self, text: str) -> None:
        raise AssertionError(text)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.heard) < count:
                self.changed.clear()
                await self.changed.wait()


async def test_a_file_is_read_again_when_it_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "pods.json"
    ear, source = Ear(), FileSource(path, watch_s=0.01)
    task = asyncio.ensure_future(source.run(ear))
    await ear.until(1)
    assert ear.heard == ["No such file or directory"]
    written(tmp_path, TWO)
    await ear.until(2)
    written(tmp_path, "nonsense")
    async with asyncio.timeout(30):
        while "refused" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert f"new file:{path} refused, the old ones stay in use: not valid JSON" in caplog.text
    written(tmp_path, TWO[:1])
    await ear.until(3)
    source.reload()
    await ear.until(4)
    assert ear.heard[1:] == [["http://p:8100", "http://d:8200"], ["http://p:8100"], ["http://p:8100"]]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
