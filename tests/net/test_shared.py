"""Two gateways and one server between them route as one gateway would, and go on without the server."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from gateway.core.policies import Choice, Policy, TurnView
from gateway.net.breaker import FAILURES, OPEN_S
from gateway.net.redis_link import RedisLink
from gateway.net.shared import SharedState
from tests.net.cluster import Cluster, Talker, another, cluster, needs_server
from tests.net.world import LONG
from tests.redis_server import RedisServer

pytestmark = needs_server

Story = list[list[tuple[int | None, str | None, int]]]


async def play(c: Cluster) -> Story:
    """Chats and texts, with and without an id, edited and begun alike, each turn at the next gateway."""
    at = 0

    async def member_after_rest() -> int:
        nonlocal at
        await c.settled()
        at += 1
        return at % len(c.members)

    session = c.world.session
    chats = [Talker(session, f"chat {n}") for n in range(3)]
    named = [Talker(session, f"named {n}", session_id=f"session-{n}") for n in range(2)]
    texts = [Talker(session, f"text {n}") for n in range(2)]
    short = Talker(session, "short text")
    alike = [Talker(session, f"alike {n}", max_tokens=5 + n) for n in range(2)]
    for turn in range(4):
        for talker in (*chats, *named):
            await talker.say(c.members[await member_after_rest()], f"{LONG} {talker.name} asks {turn}")
        for talker in texts:
            await talker.write(c.members[await member_after_rest()], f"{LONG * 3} {talker.name} writes {turn}. ")
        await short.write(c.members[await member_after_rest()], f"A short question, number {turn}. ")
        for talker in alike:
            words = LONG if turn == 0 else f"{LONG} {talker.name} asks {turn}"
            await talker.say(c.members[await member_after_rest()], words)
    for talker in chats:
        await talker.edit(c.members[await member_after_rest()], f"{LONG} {talker.name} changes its mind")
        await talker.say(c.members[await member_after_rest()], f"{LONG} {talker.name} goes on from there")
    return [talker.story for talker in (*chats, *named, *texts, short, *alike)]


@pytest.mark.parametrize("policy", ["local", "pd"])
async def test_two_gateways_taking_turns_route_as_one(policy: str) -> None:
    options = {"prefill": 2, "decode": 3, "policy": policy}
    async with cluster(1, None, **options) as alone:
        expected = await play(alone)
    async with RedisServer() as server, cluster(2, server.url, **options) as pair:
        assert await play(pair) == expected
        for member in pair.members:
            assert member.asks("hit") > 0
            assert member.asks("timeout", "error", "skipped") == 0
            assert len(member.running.gateway.parts.store) > 0
    assert [turns[-1][0] for turns in expected] == [5, 5, 5, 4, 4, 4, 4, 4, 4, 4]
    assert {route for turns in expected for _, route, _ in turns[1:]} == {policy}


async def test_three_gateways_and_every_turn_at_another_one() -> None:
    async with RedisServer() as server, cluster(3, server.url, decode=3) as c:
        talker = Talker(c.world.session, "one")
        for turn in range(9):
            await talker.say(c.members[turn % 3], f"{LONG} question {turn}")
            await c.settled()
        assert [turn for turn, _, _ in talker.story] == list(range(1, 10))
        assert {pod for _, _, pod in talker.story} == {0}
        assert len({record.conversation for record in talker.records}) == 1


async def test_a_branch_made_at_the_other_gateway_is_a_conversation_of_its_own() -> None:
    async with RedisServer() as server, cluster(2, server.url) as c:
        one, other = c.members
        talker = Talker(c.world.session, "one")
        await talker.say(one, f"{LONG} first")
        await c.settled()
        await talker.say(one, f"{LONG} second")
        await c.settled()
        branched = await talker.edit(other, f"{LONG} second, but otherwise")
        assert (branched.turn, branched.kind) == (2, "branch")
        assert branched.conversation != talker.records[0].conversation
        assert branched.answering == talker.records[0].answering


async def test_two_gateways_that_go_on_from_one_turn_at_once_keep_the_branches_apart() -> None:
    async with RedisServer() as server, cluster(2, server.url) as c:
        one, other = c.members
        mine = Talker(c.world.session, "one")
        await mine.say(one, f"{LONG} first")
        await c.settled()
        yours = Talker(c.world.session, "one", messages=list(mine.messages))
        await asyncio.gather(mine.say(one, f"{LONG} mine"), yours.say(other, f"{LONG} yours"))
        await c.settled()
        await mine.say(other, f"{LONG} mine again")
        await yours.say(one, f"{LONG} yours again")
        assert [turn for turn, _, _ in mine.story] == [1, 2, 3]
        assert [turn for turn, _, _ in yours.story] == [2, 3]
        keys = {mine.records[-1].conversation, yours.records[-1].conversation}
        assert len(keys) == 2, "the same conversation for both"


async def test_nothing_is_asked_that_this_gateway_must_know() -> None:
    async with RedisServer() as server, cluster(2, server.url) as c:
        talker = Talker(c.world.session, "one")
        for turn in range(4):
            await talker.say(c.members[0], f"{LONG} question {turn}")
        assert c.members[0].asks() == 0
        await c.settled()
        await talker.say(c.members[1], f"{LONG} question 4")
        assert (c.members[1].asks(), c.members[1].asks("hit")) == (1, 1)


async def test_the_server_holds_neither_text_nor_keys_and_forgets() -> None:
    async with RedisServer() as server, cluster(2, server.url) as c:
        await play(c)
        await c.settled()
        link = RedisLink(server.url, "default")
        client = link._client
        held = b""
        keys = [key async for key in client.scan_iter()]
        assert len(keys) > 50
        for key in keys:
            kind = await client.type(key)
            assert key.startswith(b"ppd:default:")
            ttl = await client.pttl(key)
            assert 0 < ttl <= 3600_000
            value = b"".join(await client.smembers(key)) if kind == b"set" else await client.get(key)
            assert len(value) < 1024
            held += key + value
        await link.stop()
        for word in (b"river", b"engine", b"asks", b"short", b"question", b"sk-secret", b"tenant", b"session-", b"sim"):
            assert word not in held


async def test_gateways_add_up_their_rates() -> None:
    async with RedisServer() as server, cluster(2, server.url) as c:
        one, other = c.members
        talkers = [Talker(c.world.session, f"{n}") for n in range(20)]
        await asyncio.gather(*(talker.say(one, f"{LONG} {talker.name}") for talker in talkers))
        async with asyncio.timeout(30):
            while not other.shared.others_rate:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert 1 < other.shared.others_rate <= 20
        assert one.shared.others_rate == pytest.approx(0.0)
        spy = Spy(other.running.gateway.parts.policy, other.shared)
        other.running.gateway.parts.policy = spy
        await talkers[0].say(other, f"{LONG} second")
        own = other.running.gateway.parts.rate.per_second(time.monotonic())
        assert own < 2
        assert spy.views[0].rate > spy.heard[0] > 1, "its own are few; most of the rate is the other gateway's"
        await server.kill()
        async with asyncio.timeout(30):
            while other.shared.others_rate:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


class Spy:
    """A policy that keeps what it was shown, and what the others' rate was then."""

    def __init__(self, policy: Policy, shared: SharedState) -> None:
        self._policy = policy
        self._shared = shared
        self.views: list[TurnView] = []
        self.heard: list[float] = []

    def choose(self, view: TurnView) -> Choice:
        self.views.append(view)
        self.heard.append(self._shared.others_rate)
        return self._policy.choose(view)


@pytest.mark.parametrize("how", ["killed", "hanging"])
async def test_without_the_server_every_request_is_answered_and_few_of_them_ask(how: str) -> None:
    options = {} if how == "killed" else {"state_timeout_s": "0.05"}
    async with RedisServer() as server, cluster(2, server.url, **options) as c:
        one = c.members[0]
        talkers = [Talker(c.world.session, f"talker {n}") for n in range(10)]
        for talker in talkers:
            await talker.say(one, f"{LONG} {talker.name}")
        await c.settled()
        if how == "killed":
            await server.kill()
        else:
            server.hang()
        began_s = time.monotonic()
        for turn in range(5):
            for n, talker in enumerate(talkers):
                await talker.say(c.members[(turn + n) % 2], f"{LONG} {talker.name} {turn}")
        took_s = time.monotonic() - began_s
        assert [len(talker.records) for talker in talkers] == [6] * 10
        for member in c.members:
            asked = member.asks("timeout", "error")
            assert asked <= FAILURES + took_s / OPEN_S + 1, "the breaker lets one question through in a second"
            assert member.asks("skipped") > 0
            assert member.shared.breaker.open

        if how == "killed":
            await server.start()
        else:
            server.go_on()
            for member in c.members:
                member.be_patient()
        async with asyncio.timeout(30):
            await c.settled()
        assert all(member.shared.pending_writes == 0 for member in c.members)
        async with asyncio.timeout(30):
            while any(member.shared.breaker.open for member in c.members):
                for n, member in enumerate(c.members):
                    probe = Talker(c.world.session, "probe")
                    await probe.write(member, f"Is it there again? {n} {time.monotonic()}")
                await asyncio.sleep(0.05)
        fresh = Talker(c.world.session, "fresh")
        for turn in range(4):
            await fresh.say(c.members[turn % 2], f"{LONG} fresh {turn}")
            await c.settled()
        assert [turn for turn, _, _ in fresh.story] == [1, 2, 3, 4]
        last = talkers[0]
        went = last.records[-1]
        await last.say(next(m for m in c.members if went not in m.watcher.records), f"{LONG} at the other one")
        assert (last.records[-1].turn, last.records[-1].conversation) == ((went.turn or 0) + 1, went.conversation)


async def test_a_gateway_that_comes_up_without_the_server_finds_it_later() -> None:
    async with RedisServer() as server:
        await server.kill()
        async with cluster(2, server.url) as c:
            talker = Talker(c.world.session, "one")
            await talker.say(c.members[0], f"{LONG} first")
            assert c.members[0].shared.pending_writes == 1
            await server.start()
            await c.settled()
            await talker.say(c.members[1], f"{LONG} second")
            assert [turn for turn, _, _ in talker.story] == [1, 2]


async def test_clusters_on_one_server_do_not_meet() -> None:
    async with RedisServer() as server, AsyncExitStack() as stack:
        c = await stack.enter_async_context(cluster(1, server.url))
        stranger = await another(c.world, stack, state=server.url, state_namespace="other", state_timeout_s="20")
        talker = Talker(c.world.session, "one")
        await talker.say(c.members[0], LONG)
        await c.settled()
        record = await talker.say(stranger, f"{LONG} again")
        assert (record.turn, record.kind, stranger.asks("miss")) == (1, "new", 1)


async def test_a_password_is_used_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with RedisServer("--requirepass", "s3cret-word") as server:
        wrong = server.url.replace("redis://", "redis://:not-it@")
        right = server.url.replace("redis://", "redis://:s3cret-word@")
        with caplog.at_level("DEBUG", logger="ppd_gateway"):
            async with cluster(2, right) as c:
                talker = Talker(c.world.session, "one")
                await talker.say(c.members[0], LONG)
                await c.settled()
                assert (await talker.say(c.members[1], f"{LONG} again")).turn == 2
            async with cluster(1, wrong) as c:
                for n in range(FAILURES + 1):
                    await Talker(c.world.session, "one").write(c.members[0], f"{n} {LONG}")
                assert c.members[0].asks("error") == FAILURES
        assert "AuthenticationError" in caplog.text
        assert "not-it" not in caplog.text
        assert "s3cret" not in caplog.text
