"""Who is let in, for what, and as whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.core.keys import hash_of, read_keys
from gateway.net.keys import Door, tenant_of
from gateway.net.request import Request
from gateway.wire.errors import UnauthorizedError
from tests.net.world import CHAT, World, assistant, user, world

ALICE, ALICE_TOO, BOB = "ppd-alice-1", "ppd-alice-2", "ppd-bob"
UNAUTHORIZED = {"error": {"message": "Unauthorized", "type": "authentication_error", "param": None, "code": 401}}


def key_lines(**keys: str) -> str:
    return "".join(f"{hash_of(key)} {name.partition('__')[0]}\n" for name, key in keys.items())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def guarded(folder: Path, **options: Any) -> AsyncIterator[World]:
    """A world with keys of two tenants."""
    file = folder / "keys"
    file.write_text(key_lines(alice=ALICE, alice__2=ALICE_TOO, bob=BOB), encoding="utf-8")
    async with world(api_keys=str(file), **options) as made:
        yield made


def body(*messages: dict[str, str], **fields: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": list(messages), "max_tokens": 8, **fields}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("nobody's"),
        bearer(""),
        bearer(hash_of(ALICE)),
        {"Authorization": ALICE},
        {"Authorization": f"Basic {ALICE}"},
        {"x-api-key": "nobody's"},
        {"api-key": ALICE},
        {"Cookie": f"key={ALICE}"},
    ],
    ids=str,
)
async def test_who_has_no_key_gets_401_and_no_pod_hears_of_it(headers: dict[str, str], tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        reply = await w.post(CHAT, body(user()), headers)
        models = await w.get("/v1/models", headers=headers)
        unknown = await w.get("/nothing/here", headers=headers)
        assert not w.decode[0].requests
    assert reply.status == models.status == unknown.status == 401
    assert reply.json == models.json == unknown.json == UNAUTHORIZED
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["content-type"] == "application/json"
    record = w.watcher.records[0]
    assert (record.status, record.outcome, record.path) == (401, "rejected", CHAT)


@pytest.mark.parametrize(
    "headers", [bearer(ALICE), {"Authorization": f"bearer {ALICE}"}, {"x-api-key": ALICE}], ids=str
)
async def test_a_key_opens_and_stays_at_the_door(headers: dict[str, str], tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        reply = await w.post(CHAT, body(user()), headers)
        assert reply.status == 200
        assert (await w.post("/tokenize", {"model": "sim", "prompt": "hi"}, headers)).status == 200
        await w.settled()
        seen = [request for pod in (*w.prefill, *w.decode) for request in pod.requests]
    assert len(seen) == 2
    for request in seen:
        names = {name.lower() for name in request.headers}
        assert not names & {"authorization", "x-api-key"}, request


async def test_a_key_in_either_place_is_enough_but_the_bearer_token_counts_first(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        assert (await w.get("/v1/models", headers={**bearer(ALICE), "x-api-key": "wrong"})).status == 200
        assert (await w.get("/v1/models", headers={**bearer("wrong"), "x-api-key": ALICE})).status == 401


async def test_the_official_client_understands_the_refusal(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        for key in ("wrong", ALICE):
            async with openai.AsyncOpenAI(base_url=f"{w.url}/v1", api_key=key, max_retries=0) as client:
                if key == ALICE:
                    assert (await client.models.list()).data[0].id == "sim"
                else:
                    with pytest.raises(openai.AuthenticationError):
                        await client.models.list()


async def test_without_keys_everybody_is_let_in_and_the_header_goes_on() -> None:
    async with world(prefill=0, decode=1) as w:
        assert (await w.post(CHAT, body(user()), bearer("anything"))).status == 200
        assert w.decode[0].requests[-1].headers["authorization"] == "Bearer anything"


OPEN = [("GET", "/health"), ("HEAD", "/health"), ("GET", "/ready"), ("HEAD", "/ready"), ("HEAD", "/")]
LOCAL = [("GET", "/metrics"), ("GET", "/admin/pods"), ("GET", "/admin/residency")]
CLOSED = [
    ("GET", "/"),
    ("POST", "/health"),
    ("GET", "/health/"),
    ("GET", "/v1/models"),
    ("POST", CHAT),
    ("OPTIONS", CHAT),
    ("HEAD", "/v1/models"),
    ("GET", "/version"),
    ("GET", "/metrics2"),
    ("GET", "/adminx"),
    ("GET", "/METRICS"),
]


def asked(method: str, path: str, peer: str, *headers: tuple[str, str]) -> Request:
    return Request(method, path, list(headers), b"", True, True, peer)


RING = read_keys(key_lines(alice=ALICE, bob=BOB))


@pytest.mark.parametrize(("method", "path"), OPEN)
def test_what_load_balancers_ask_needs_no_key(method: str, path: str) -> None:
    assert Door(RING).admit(asked(method, path, "203.0.113.7")).path == path
    assert Door(RING).admit(asked(method, path, "203.0.113.7", ("Authorization", "Bearer wrong"))).path == path


@pytest.mark.parametrize(("method", "path"), LOCAL)
def test_operators_pages_need_a_key_but_from_the_machine_itself(method: str, path: str) -> None:
    door = Door(RING)
    for peer in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"):
        assert door.admit(asked(method, path, peer)).path == path
    for peer in ("203.0.113.7", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "", "localhost.evil"):
        with pytest.raises(UnauthorizedError):
            door.admit(asked(method, path, peer))
        assert door.admit(asked(method, path, peer, ("Authorization", f"Bearer {BOB}"))).path == path


@pytest.mark.parametrize("header", ["X-Forwarded-For", "forwarded", "X-Real-IP"])
def test_what_a_proxy_on_the_machine_passes_on_is_not_from_the_machine(header: str) -> None:
    with pytest.raises(UnauthorizedError):
        Door(RING).admit(asked("GET", "/metrics", "127.0.0.1", (header, "127.0.0.1")))


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_everything_else_needs_one_even_from_the_machine_itself(method: str, path: str) -> None:
    with pytest.raises(UnauthorizedError):
        Door(RING).admit(asked(method, path, "127.0.0.1"))


async def test_the_peers_address_is_that_of_the_connection(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        assert (await w.get("/metrics")).status == 200
        assert (await w.get("/admin/pods")).status == 200
        assert (await w.get("/metrics", headers={"X-Forwarded-For": "10.0.0.1"})).status == 401
        assert (await w.get("/metrics", headers={"X-Forwarded-For": "10.0.0.1", **bearer(BOB)})).status == 200
        assert (await w.get("/ready")).status == 200


def test_the_tenant_is_the_keys_and_without_keys_what_was_sent() -> None:
    door = Door(RING)
    by_token = door.admit(asked("POST", CHAT, "", ("authorization", f"Bearer {ALICE}")))
    by_header = door.admit(asked("POST", CHAT, "", ("X-API-Key", ALICE)))
    assert tenant_of(by_token) == tenant_of(by_header) == "tenant alice"
    everybody = Door()
    assert tenant_of(everybody.admit(asked("POST", CHAT, "", ("authorization", "Bearer x")))) == "Bearer x"
    assert tenant_of(everybody.admit(asked("POST", CHAT, "", ("x-api-key", "y")))) == "y"
    assert tenant_of(everybody.admit(asked("POST", CHAT, ""))) == ""


async def test_two_keys_of_a_tenant_share_its_conversations_and_two_tenants_do_not(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        first = await w.post(CHAT, body(user()), bearer(ALICE))
        later = body(user(), assistant(first.text), user("And then?"))
        assert (await w.post(CHAT, later, bearer(ALICE_TOO))).status == 200
        assert (await w.post(CHAT, later, bearer(BOB))).status == 200
        records = [await w.record(number) for number in (1, 2, 3)]
    assert [record.turn for record in records] == [1, 2, 1]
    assert records[0].conversation == records[1].conversation != records[2].conversation


async def test_a_tenants_weights_are_found_by_its_name_or_a_key_of_it(tmp_path: Path) -> None:
    from gateway.core.weights import Weights
    from gateway.net.intake import _weights

    spec = ["alice:ttft=7", f"{hash_of(BOB)}:ttft=9"]
    async with guarded(tmp_path, prefill=0, decode=1, tenant_weights=spec) as w:
        parts, door = w.gateway.parts, w.gateway.door

        def weights(key: str) -> Weights:
            return _weights(parts, door.admit(asked("POST", CHAT, "", ("Authorization", f"Bearer {key}"))))

        assert [weights(key).w_ttft for key in (ALICE, ALICE_TOO, BOB)] == [7, 7, 9]


async def test_tenants_are_isolated_by_name(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1, isolate_tenants=True) as w:
        for key in (ALICE, ALICE_TOO, BOB):
            assert (await w.post(CHAT, body(user()), bearer(key))).status == 200
        alice, alice_too, bob = (request.body["cache_salt"] for request in w.decode[0].requests)
    assert alice == alice_too != bob


# Another file


async def reloaded(w: World, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Wait for that many lines about the file."""
    async with asyncio.timeout(30):
        while sum("keys (" in record.message for record in caplog.records) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_new_keys_count_from_sighup_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ppd_gateway")
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        (tmp_path / "keys").write_text(key_lines(carol="ppd-carol"), encoding="utf-8")
        assert (await w.get("/v1/models", headers=bearer(ALICE))).status == 200
        w.running.reload()
        await reloaded(w, 1, caplog)
        assert (await w.get("/v1/models", headers=bearer("ppd-carol"))).status == 200
        assert (await w.get("/v1/models", headers=bearer(ALICE))).status == 401
    assert f"keys ({tmp_path / 'keys'}) read again: 1 keys of 1 tenants" in caplog.messages


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"sk-secret alice\n", "line 1 does not begin with a SHA-256 in lower-case hex"),
        (b"", "there is no key in it"),
        (b"\xff\xfe", "not UTF-8 text"),
        (None, "No such file or directory"),
    ],
    ids=["garbage", "empty", "binary", "gone"],
)
async def test_a_bad_new_file_is_refused_in_one_line_and_the_old_keys_stay(
    text: bytes | None, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ppd_gateway")
    file = tmp_path / "keys"
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        if text is None:
            file.unlink()
        else:
            file.write_bytes(text)
        w.running.reload()
        await reloaded(w, 1, caplog)
        assert (await w.get("/v1/models", headers=bearer(ALICE))).status == 200
        assert (await w.get("/v1/models", headers=bearer("wrong"))).status == 401
    lines = [message for message in caplog.messages if "keys (" in message]
    assert lines == [f"new keys ({file}) refused, the old ones stay in use: {said}"]
