"""The store against a model of it that is too simple to be wrong: one list of turns, searched from end to end.

Users of two tenants talk, regenerate, edit and begin alike, in chats and in texts, several at once; turns fail,
time passes, old conversations are forgotten. Every recognition must be the model's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from gateway.core import conversations
from gateway.core.chains import Chain
from gateway.core.conversations import ConversationStore, Kind, Recognition
from tests.core.support import OTHER_TENANT, ROOT, chat, key, result, text

MAX_CONVERSATIONS, TTL_S, MAX_TRACES, MAX_ALIKE = 25, 50.0, 4, 3


@dataclass(eq=False)
class Talk:
    """The model's conversation."""

    key: bytes
    seen_s: float
    turn: int = 0
    pending: int = 0


@dataclass(eq=False)
class Turn:
    """The model's trace: a prompt as its list of messages, with what follows.

    prompt_tokens: of it. kept_tokens: that a prompt shares which goes on from the reply.
    """

    talk: Talk
    prompt: tuple[str, ...]
    number: int
    reply: str
    prompt_tokens: int
    kept_tokens: int


@dataclass
class Model:
    """A prompt is (tenant, message, message, …); prompts of different tenants begin differently, so never meet."""

    is_text: bool
    talks: list[Talk] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def recognise(self, prompt: tuple[str, ...], fresh: bytes, now_s: float) -> tuple[Kind, int, int, Talk]:
        self.talks.sort(key=lambda talk: talk.seen_s)
        for talk in [talk for talk in self.talks if now_s - talk.seen_s > TTL_S]:
            self.forget(talk)
        kind, number, shared, known = self.look_up(prompt)
        if known is None:
            known = Talk(fresh, now_s)
            self.talks.append(known)
        known.seen_s = now_s
        self.talks.remove(known)
        self.talks.append(known)
        while len(self.talks) > MAX_CONVERSATIONS:
            self.forget(self.talks[0])
        known.pending += 1
        return kind, number, shared, known

    def look_up(self, prompt: tuple[str, ...]) -> tuple[Kind, int, int, Talk | None]:
        """(kind, turn, shared tokens, conversation to go on with, None for a new record)."""
        for length in range(len(prompt), 1, -1):
            alike = [turn for turn in self.turns if turn.prompt == prompt[:length]]
            if not alike:
                continue
            last = alike[-1]
            if length == len(prompt):
                had_replies = self.is_text or any(part.startswith("a:") for part in prompt)
                if not had_replies or last.number == 1:
                    return Kind.NEW, 1, 0, None
                alone = all(turn.talk is last.talk for turn in alike)
                if alone and last.talk.pending == 0 and self.newest(last.talk) is last:
                    return Kind.REPEAT, last.number, last.prompt_tokens, last.talk
                return Kind.BRANCH, last.number, last.prompt_tokens, None
            fitting = [turn for turn in reversed(alike) if prompt[length] == turn.reply]
            for turn in fitting:
                if self.newest(turn.talk) is turn and turn.talk.pending == 0:
                    return Kind.NEXT, turn.number + 1, turn.kept_tokens, turn.talk
            if fitting:
                return Kind.BRANCH, fitting[0].number + 1, fitting[0].kept_tokens, None
            return Kind.BRANCH, last.number + 1, last.prompt_tokens, None
        return Kind.NEW, 1, 0, None

    def newest(self, talk: Talk) -> Turn:
        return [turn for turn in self.turns if turn.talk is talk][-1]

    def fail(self, talk: Talk) -> None:
        talk.pending -= 1
        if talk.turn == 0 and talk.pending == 0 and talk in self.talks:
            self.forget(talk)

    def finish(self, new: Turn) -> None:
        talk = new.talk
        talk.pending -= 1
        talk.turn = max(talk.turn, new.number)
        if talk not in self.talks:
            return
        same = [turn for turn in self.turns if (turn.talk, turn.prompt, turn.reply) == (talk, new.prompt, new.reply)]
        self.turns = [turn for turn in self.turns if turn not in same]
        own = [turn for turn in self.turns if turn.talk is talk]
        if len(own) >= MAX_TRACES:
            self.turns.remove(own[0])
        self.turns.append(new)
        alike = [turn for turn in self.turns if turn.prompt == new.prompt]
        if len(alike) > MAX_ALIKE:
            self.turns.remove(alike[0])

    def forget(self, talk: Talk) -> None:
        self.talks.remove(talk)
        self.turns = [turn for turn in self.turns if turn.talk is not talk]


@dataclass(eq=False)
class User:
    """Someone at a keyboard: what is on the screen, and the request that is on its way."""

    tenant: str
    screen: tuple[str, ...] = ()
    waiting: tuple[Recognition, Talk, tuple[str, ...]] | None = None


@dataclass
class World:
    """The store and its model side by side."""

    dice: random.Random
    is_text: bool
    store: ConversationStore = field(default_factory=lambda: ConversationStore(MAX_CONVERSATIONS, TTL_S))
    now_s: float = 0.0
    count: int = 0
    kinds: set[Kind] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = Model(self.is_text)
        self.users = [User(self.dice.choice(["one", "two"])) for _ in range(12)]

    def chain(self, prompt: tuple[str, ...]) -> Chain:
        root = ROOT if prompt[0] == "one" else OTHER_TENANT
        return text("".join(prompt[1:]), root) if self.is_text else chat(*prompt[1:], root=root)

    def reply(self) -> str:
        """One that many give, or one of its own; none is the beginning of another."""
        if self.dice.random() < 0.3:
            return "a:yes. "
        self.count += 1
        return f"a:reply {self.count:06d}. " + "x" * self.dice.choice([0, 10, 1500])

    def step(self) -> None:
        user = self.dice.choice(self.users)
        if user.waiting is None:
            self.ask(user, (user.tenant, *self.typed(user)))
        elif self.dice.random() < 0.15:
            self.fail(user)
        else:
            self.answer(user)
        if self.dice.random() < 0.004:
            self.now_s += self.dice.choice([1.0, TTL_S, TTL_S + 1])
        self.now_s += 0.1

    def typed(self, user: User) -> tuple[str, ...]:
        """The next prompt: go on, ask again, edit something, or start anew with few words that others use too."""
        screen, what = user.screen, self.dice.random()
        word = "u:" + self.dice.choice("abc") * self.dice.choice([1, 700, 1021]) + ";"
        if not screen or what < 0.15:
            return (word,)
        if what < 0.7:
            return (*screen, word)
        if what < 0.85:
            return screen[:-1]
        return (*screen[: self.dice.randrange(0, len(screen), 2)], word)

    def ask(self, user: User, prompt: tuple[str, ...]) -> None:
        self.count += 1
        fresh = key(self.count)
        root = ROOT if user.tenant == "one" else OTHER_TENANT
        got = self.store.recognise(root, None, self.chain(prompt), fresh, self.now_s)
        self.store.begin(got.conversation)
        kind, number, shared, talk = self.model.recognise(prompt, fresh, self.now_s)
        assert (got.kind, got.turn, got.shared_tokens, got.conversation.key) == (kind, number, shared, talk.key)
        self.kinds.add(kind)
        user.waiting = (got, talk, prompt)

    def answer(self, user: User) -> None:
        assert user.waiting is not None
        recognition, talk, prompt = user.waiting
        reply = self.reply()
        tokens, output = self.dice.randrange(1000), self.dice.randrange(100)
        reasoned = not self.is_text and self.dice.random() < 0.3
        left = result(reply if self.is_text else reply[2:], prompt=tokens, output=output, reasoned=reasoned)
        self.store.finish(recognition, self.chain(prompt), left)
        kept = tokens if reasoned else tokens + output
        self.model.finish(Turn(talk, prompt, recognition.turn, reply, tokens, kept))
        user.screen, user.waiting = (*prompt[1:], reply), None

    def fail(self, user: User) -> None:
        assert user.waiting is not None
        recognition, talk, _ = user.waiting
        self.store.fail(recognition.conversation)
        self.model.fail(talk)
        user.waiting = None

    def check(self) -> None:
        """Both hold the same, and the store's indexes say what its traces say."""
        store, model = self.store, self.model
        assert list(store._by_key) == [talk.key for talk in model.talks]
        traces = [trace for conversation in store._by_key.values() for trace in conversation.traces]
        assert len(traces) == len(model.turns)
        indexed = [trace for alike in store._by_prompt.values() for trace in alike]
        assert sorted(map(id, indexed)) == sorted(map(id, traces))
        assert all(trace.prompt_hash == hashed for hashed, alike in store._by_prompt.items() for trace in alike)
        counted: dict[tuple[bytes, int], int] = {}
        for trace in traces:
            if trace.joint is not None:
                counted[trace.joint] = counted.get(trace.joint, 0) + 1
        assert counted == {(block, at): n for block, offsets in store._lengths.items() for at, n in offsets.items()}
        for talk in model.talks:
            conversation = store.get(talk.key)
            assert conversation is not None
            assert (conversation.turn, conversation.pending) == (talk.turn, talk.pending)


@pytest.mark.parametrize("is_text", [False, True], ids=["chat", "text"])
@pytest.mark.parametrize("seed", range(4))
def test_the_store_does_what_the_model_does(seed: int, is_text: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_TRACES", MAX_TRACES)
    monkeypatch.setattr(conversations, "MAX_ALIKE", MAX_ALIKE)
    world = World(random.Random(seed), is_text)
    for _ in range(1500):
        world.step()
        world.check()
    assert world.kinds == set(Kind), "every kind came up"
    for user in world.users:
        if user.waiting is not None:
            world.fail(user)
    world.check()
    world.now_s += TTL_S + 1
    last = world.store.recognise(ROOT, None, None, key(0), world.now_s)
    world.store.begin(last.conversation)
    world.store.fail(last.conversation)
    assert (world.store._by_key, world.store._by_prompt, world.store._lengths) == ({}, {}, {})
