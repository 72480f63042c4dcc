"""Keys and tenants in the shared state in place of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.keys import hash_of
from gateway.ops import cli
from gateway.ops.documents import Shared, WatchedDocument
from gateway.ops.keys import load_keys
from gateway.ops.layers import ConfigError
from tests.net.cluster import needs_server
from tests.net.test_disconnects import eventually
from tests.net.test_tenants import ALICE, BOB, ask
from tests.net.world import world
from tests.redis_server import RedisServer

pytestmark = needs_server
STATE = {"api_keys": "state:keys", "tenants_file": "state:tenants", "state_timeout_s": "20"}


def publish(server: RedisServer, name: str, file: Path, text: str) -> int:
    file.write_text(text)
    return cli.main(["publish", name, str(file), "--state", server.url])


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are looked at all the time."""
    made = WatchedDocument.__init__

    def soon(self: WatchedDocument, what: str, name: str, shared: Shared, take: object, watch_s: float = 0.02) -> None:
        made(self, what, name, shared, take, watch_s)  # type: ignore[arg-type]

    monkeypatch.setattr(WatchedDocument, "__init__", soon)


async def test_keys_and_tenants_are_those_of_the_state_and_change_with_it(tmp_path: Path) -> None:
    async with RedisServer() as server:
        assert publish(server, "keys", tmp_path / "k", f"{hash_of(ALICE)} alice\n") == 0
        assert publish(server, "tenants", tmp_path / "t", "[tenants.alice]\nmodels = []") == 0
        async with world(prefill=1, decode=1, state=server.url, **STATE) as w:
            assert (await ask(w, ALICE)).status == 404
            assert (await ask(w, BOB)).status == 401
            publish(server, "tenants", tmp_path / "t", '[tenants.alice]\nclass = "batch"')
            publish(server, "keys", tmp_path / "k", f"{hash_of(ALICE)} alice\n{hash_of(BOB)} bob\n")
            tenancy, door = w.gateway.parts.tenancy, w.gateway.door
            assert tenancy is not None
            await eventually(lambda: tenancy.book.of("alice").models is None)
            await eventually(lambda: door.ring is not None and len(door.ring) == 2)
            assert (await ask(w, ALICE)).status == (await ask(w, BOB)).status == 200
            await server.kill()
            assert (await ask(w, ALICE)).status == 200


async def test_a_bad_document_is_not_published_and_one_that_is_there_all_the_same_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with RedisServer() as server:
        assert publish(server, "keys", tmp_path / "k", "secret alice\n") == 2
        said = capsys.readouterr().err
        assert "publish keys: line 1 does not begin with a SHA-256" in said
        assert "secret" not in said
        publish(server, "keys", tmp_path / "k", f"{hash_of(ALICE)} alice\n")
        options = {**STATE, "tenants_file": None}
        async with world(prefill=1, decode=1, state=server.url, **options) as w:
            Shared(server.url, "default").write("keys", "nonsense")
            Shared(server.url, "default").write("keys", f"{hash_of(BOB)} bob\n")
            await eventually(lambda: w.gateway.door.ring is not None and w.gateway.door.ring.find(BOB) is not None)
            Shared(server.url, "default").write("keys", "nonsense")
            assert (await ask(w, BOB)).status == 200


async def test_a_document_that_is_not_there_is_one_line_at_the_start() -> None:
    async with RedisServer() as server:
        shared = Shared(server.url, "default")
        with pytest.raises(ConfigError, match="state:keys: api_keys: the shared state has no document 'keys'"):
            load_keys(Path("state:keys"), shared)
        await server.kill()
        with pytest.raises(ConfigError, match="state:keys: api_keys: the shared state does not answer"):
            load_keys(Path("state:keys"), shared)
        with pytest.raises(ConfigError, match="state:keys: api_keys: state: needs state"):
            load_keys(Path("state:keys"))


async def test_what_changed_between_the_start_and_the_first_look_is_taken(tmp_path: Path) -> None:
    async with RedisServer() as server:
        shared, taken = Shared(server.url, "default"), list[str]()
        shared.write("keys", "old")
        assert shared.read("keys") == "old"
        document = WatchedDocument("keys", "keys", shared, lambda: taken.append(shared.read("keys")) or "taken", 3600)
        shared.write("keys", "new")
        document.start()
        await eventually(lambda: taken == ["new"])
        await document.stop()


async def test_what_could_not_be_read_is_tried_at_the_next_look(tmp_path: Path) -> None:
    async with RedisServer() as server:
        shared, tries = Shared(server.url, "default"), list[str]()
        shared.write("keys", "new")

        def take() -> str:
            tries.append("")
            if len(tries) == 1:
                raise OSError(0, "away")
            return "taken"

        document = WatchedDocument("keys", "keys", shared, take, 0.01)
        document.start()
        await eventually(lambda: len(tries) == 2)
        await document.stop()
