"""A restart of the gateway forgets no conversation, and no bad file keeps it from starting."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.core.conversations import ConversationStore
from gateway.core.memory import Memory
from gateway.core.residency import Residency
from gateway.net import snapshots
from gateway.net.snapshots import SnapshotError, Snapshots, read
from gateway.ops.config import load
from gateway.ops.serve import running
from tests.core.support import ROOT, chat, key, result
from tests.core.test_memory import pods
from tests.net.cluster import Member, Talker, another
from tests.net.world import LONG, names_in, world


def keeping(path: Path, conversations: int = 0) -> tuple[Snapshots, Memory, list[str]]:
    """Snapshots of a store with so many conversations, and what they complained of."""
    fleet, said = pods(p0="a", d0="b"), list[str]()
    memory = Memory(ConversationStore(1_000_000, 3600.0), fleet, Residency())
    for n in range(conversations):
        chain = chat(f"question {n}")
        found = memory.store.recognise(ROOT, None, chain, key(n), time.monotonic())
        memory.store.begin(found.conversation)
        memory.store.finish(found, chain, result())
    return Snapshots(path, 3600.0, memory, fleet, on_failure=said.append), memory, said


async def test_what_is_saved_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "state"
    before, _, _ = keeping(path, 1000)
    await before.save()
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / ".state.tmp").write_text("left behind by one that was killed")
    (tmp_path / ".state.tmp").chmod(0o644)
    await before.save()
    assert path.stat().st_mode & 0o777 == 0o600
    assert before.written is not None
    assert before.written[:2] == (1000, path.stat().st_size)
    after, memory, _ = keeping(path)
    found = after.restore(3600.0)
    assert found is not None
    assert (len(memory.store), found.instances) == (1000, {"p0": "a", "d0": "b", "d1": ""})
    assert (
        memory.store.recognise(ROOT, None, chat("question 7", "a:hello", "go on"), key(0), time.monotonic()).turn == 2
    )
    assert names_in(tmp_path) == ["state"], "no temporary file is left"


async def test_no_file_is_no_fault(tmp_path: Path) -> None:
    kept, memory, _ = keeping(tmp_path / "state")
    assert kept.restore(3600.0) is None
    assert len(memory.store) == 0


def another_version(data: bytes) -> bytes:
    return data[:8] + struct.pack("<H", 2) + data[10:]


def at_time(shift_s: float) -> Callable[[bytes], bytes]:
    """The same content, honestly made at another time."""

    def changed(data: bytes) -> bytes:
        _, version, written_s, length, _ = snapshots._HEAD.unpack_from(data)
        hasher = snapshots._hasher(version, written_s + shift_s)
        hasher.update(data[snapshots._HEAD.size :])
        return snapshots._HEAD.pack(b"PPDSTATE", version, written_s + shift_s, length, hasher.digest()) + data[48:]

    return changed


def with_content(content: bytes) -> Callable[[bytes], bytes]:
    """Another content with a checksum that fits."""

    def changed(_: bytes) -> bytes:
        now_s = time.time()
        hasher = snapshots._hasher(1, now_s)
        hasher.update(content)
        return snapshots._HEAD.pack(b"PPDSTATE", 1, now_s, len(content), hasher.digest()) + content

    return changed


BAD: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("empty", lambda data: b"", "torn: it ends within its head"),
    ("torn in its magic", lambda data: data[:5], "torn: it ends within its head"),
    ("torn in its head", lambda data: data[:40], "torn: it ends within its head"),
    ("torn in the middle", lambda data: data[: len(data) // 2], "torn: "),
    ("torn by a byte", lambda data: data[:-1], "torn: "),
    ("longer than it says", lambda data: data + b"\0", "torn: "),
    ("a bit flipped", lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "damaged: its checksum"),
    ("its time changed", lambda data: data[:16] + struct.pack("<d", 1.0) + data[24:], "damaged: its checksum"),
    ("all zeros", lambda data: bytes(len(data)), "not a state file"),
    ("something else", lambda data: b'{"conversations": []}', "not a state file"),
    ("another version", another_version, "format 2, this gateway reads 1"),
    ("too old", at_time(-3700.0), "too old: 3700 s"),
    ("from the future", at_time(3600.0), "in the future"),
    ("not a number for a time", at_time(float("nan")), "too old"),
    ("no frames", with_content(b""), "not readable, though its checksum fits"),
    ("half a frame", with_content(b"\x01"), "not readable, though its checksum fits"),
    ("a frame too long", with_content(b"\xff\0\0\0\x80"), "not readable, though its checksum fits"),
    ("other records", with_content(b"\x01\0\0\0\x80\x02\0\0\0\x91\x01"), "not readable, though its checksum fits"),
]


@pytest.mark.parametrize(("change", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
async def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, change: Callable[[bytes], bytes], said: str) -> None:
    path = tmp_path / "state"
    before, _, _ = keeping(path, 3)
    await before.save()
    path.write_bytes(change(path.read_bytes()))
    after, memory, _ = keeping(path)
    with pytest.raises(SnapshotError) as caught:
        after.restore(3600.0)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(memory.store) == 0


@pytest.mark.parametrize("what", ["folder", "pipe", "loop"])
def test_what_is_no_file_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "state"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    with pytest.raises(SnapshotError):
        read(path, 3600.0, time.time())


async def test_clocks_may_differ_a_little_and_old_conversations_stay_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "state"
    before, memory, _ = keeping(path, 2)
    old = memory.store.get(key(0))
    assert old is not None
    old.last_seen_s -= 3000.0
    await before.save()
    path.write_bytes(at_time(30.0)(path.read_bytes()))
    after, memory, _ = keeping(path)
    assert after.restore(3600.0) is not None
    assert len(memory.store) == 2
    path.write_bytes(at_time(-1000.0)(path.read_bytes()))
    after, memory, _ = keeping(path)
    assert after.restore(3600.0) is not None
    assert len(memory.store) == 1


@pytest.mark.parametrize("step", ["fsync", "fchmod"])
async def test_a_full_disk_leaves_the_old_file_and_is_said_once(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    kept, _, said = keeping(path, 3)
    await kept.save()
    old = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ends = list[bool]()
    kept._on_end = ends.append
    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        for _ in range(3):
            await kept.save()
    assert said == [f"{path}: No space left on device; the old file stays"]
    assert path.read_bytes() == old
    assert names_in(tmp_path) == ["state"]
    await kept.save()
    assert ends == [False, False, False, True]
    assert read(path, 3600.0, time.time()) is not None


async def test_a_folder_that_is_not_there_is_said_and_no_more(tmp_path: Path) -> None:
    kept, _, said = keeping(tmp_path / "nowhere" / "state", 1)
    await kept.save()
    assert said == [f"{tmp_path}/nowhere/state: No such file or directory; the old file stays"]


async def test_others_run_while_a_large_store_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _, _ = keeping(tmp_path / "state", 5000)
    longest_s, last_s, turns, turns_before_the_disk = 0.0, time.thread_time(), 0, 0

    def to_disk(*_: object) -> None:
        nonlocal turns_before_the_disk
        turns_before_the_disk = turns

    monkeypatch.setattr(snapshots, "write", to_disk)

    async def others() -> None:
        nonlocal longest_s, last_s, turns
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, last_s, turns = max(longest_s, now_s - last_s), now_s, turns + 1

    beside = asyncio.ensure_future(others())
    gc.disable()  # a full collection of what all other tests have left takes longer than a slice
    try:
        await asyncio.sleep(0)
        await kept.save()
    finally:
        gc.enable()
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    assert turns_before_the_disk > 3
    assert longest_s < 0.02, "processor time of this thread between two turns of the loop"


async def test_it_is_written_every_interval_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "state"
    kept, _, _ = keeping(path, 1)
    kept._interval_s = 0.01
    kept.start()
    async with asyncio.timeout(30):
        while kept.written is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    path.unlink()
    await kept.stop()
    assert path.exists()


async def test_a_gateway_that_cannot_listen_leaves_the_file_of_the_one_that_does(tmp_path: Path) -> None:
    path = tmp_path / "state"
    kept, _, _ = keeping(path, 3)
    await kept.save()
    held = path.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = load(None, {}, {"decode": ["http://127.0.0.1:1"], "policy": "local", "state_file": str(path)})
        config = dataclasses.replace(config, port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            async with running(config):
                pass
    assert path.read_bytes() == held


# A gateway that is restarted


@pytest.mark.parametrize("restarted", [False, True], ids=["the pod lived on", "the pod was restarted too"])
async def test_a_conversation_goes_on_after_a_restart_of_the_gateway(tmp_path: Path, restarted: bool) -> None:
    options = {"state_file": str(tmp_path / "state")}
    async with world(decode=3) as w:
        talker = Talker(w.session, "one")
        async with AsyncExitStack() as stack:
            first = await another(w, stack, **options)
            for turn in range(2):
                await talker.say(first, f"{LONG} question {turn}")
            await first.settled()
        home = w.pod(talker.records[-1].answering)
        if restarted:
            await w.kill(home)
            await w.restart(home)
        async with AsyncExitStack() as stack:
            second = await another(w, stack, **options)
            record = await talker.say(second, f"{LONG} question 2")
            assert (record.turn, record.kind, record.answering) == (3, "next", home.url)
            assert record.conversation == talker.records[0].conversation
            if restarted:
                assert record.route == "pd"
                assert record.reason is not None
                assert "was restarted" in record.reason
            else:
                assert record.route == "local"
                assert record.cached_tokens is not None
                assert record.cached_tokens > 0.8 * (talker.records[1].prompt_tokens or 0)


async def test_a_gateway_starts_empty_with_a_bad_file_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"PPDSTATE and then nothing that makes sense to anyone")
    async with world(state_file=str(path)) as w:
        assert [kind for kind, _, _ in w.watcher.faults] == ["state_refused"]
        await Talker(w.session, "one").say(Member(w.running, w.watcher, w), LONG)
    assert read(path, 3600.0, time.time()) is not None, "replaced by a good one at the end"


async def test_the_file_holds_neither_text_nor_keys(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with world(state_file=str(path)) as w:
        talker = Talker(w.session, "one", session_id="session-7")
        for turn in range(3):
            await talker.say(Member(w.running, w.watcher, w), f"{LONG} question {turn}")
            await talker.write(Member(w.running, w.watcher, w), f"{LONG} writes {turn}")
    held = path.read_bytes()
    for word in (b"river", b"engine", b"question", b"writes", b"sk-secret", b"session-", b"sim"):
        assert word not in held
