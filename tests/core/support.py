"""Short words for the tests of this room: chats, texts, pods, fleets, recognised turns."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from gateway.core.chains import MessageChain, TextChain, root_of
from gateway.core.conversations import Conversation, Kind, Recognition, TurnResult
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.residency import Residency

ROOT = root_of("tenant", "model", "")
OTHER_TENANT = root_of("tenant 2", "model", "")
ROLES = {"p": Role.PREFILL, "d": Role.DECODE, "r": Role.REPLICA}


def head(reply: str) -> bytes:
    """Stands in for `wire.prompts.reply_head`."""
    return reply.encode()


def chat(*messages: str, root: bytes = ROOT) -> MessageChain:
    """A chat prompt: "a:…" is an assistant's message, everything else is someone else's.

    "A:…" is the same with its reasoning, which the client sent back.
    """
    thoughts = [index for index, message in enumerate(messages) if message.startswith("A:")]
    messages = tuple("a:" + m[2:] if m.startswith("A:") else m for m in messages)
    digests = [xxhash.xxh3_128_digest(message.encode()) for message in messages]
    heads = [head(m[2:]) if m.startswith("a:") else None for m in messages]
    return MessageChain(root, digests, heads, thoughts=thoughts)


def text(prompt: str | bytes, root: bytes = ROOT) -> TextChain:
    """A completions prompt in text; a reply's head is the whole reply."""
    data = prompt.encode() if isinstance(prompt, str) else prompt
    return TextChain(root, data, lambda rest, head: rest.startswith(head.decode()))


def key(number: int) -> bytes:
    """A fresh key for a new conversation."""
    return number.to_bytes(16, "big")


def result(
    reply: str | None = "hello",
    *,
    prompt: int = 100,
    output: int = 20,
    prefill: str | None = "p0",
    decode: str = "d0",
    epoch: int = 0,
    route: str = "pd",
    prompt_bytes: int = 0,
    reasoned: bool = False,
) -> TurnResult:
    """A turn that ended well."""
    return TurnResult(
        prefill=prefill,
        decode=decode,
        epoch=epoch,
        route=route,
        prompt_tokens=prompt,
        output_tokens=output,
        reply_head=None if reply is None else head(reply),
        prompt_bytes=prompt_bytes,
        reasoned=reasoned,
    )


def fleet(*urls: str, down: tuple[str, ...] = (), load: Mapping[str, int] | None = None) -> Fleet:
    """Pods named by role and number: "p0", "d1", "r0". All up with no load unless said otherwise."""
    pods = [Pod(url, ROLES[url[0]], up=url not in down, load_tokens=(load or {}).get(url, 0)) for url in urls]
    return Fleet(pods)


def pod(of: Fleet, url: str) -> Pod:
    found = of.get(url)
    assert found is not None
    return found


def turn(
    number: int,
    kind: Kind = Kind.NEXT,
    *,
    decode: str | None = "d0",
    prefill: str | None = "p0",
    epoch: int = 0,
    resident: int = 1000,
    of: int = 7,
) -> Recognition:
    """A recognised request of a conversation that was served by these pods last."""
    conversation = Conversation(
        key(of), 0.0, turn=number - 1, prefill=prefill, decode=decode, epoch=epoch, context_tokens=resident
    )
    conversation.homes = () if decode is None else (decode,)
    return Recognition(conversation, kind, number, resident)


def knowing(recognition: Recognition, of: Fleet) -> Residency:
    """Pods that hold all of a conversation that they served (P less its last token), unless restarted since."""
    residency, conversation = Residency(), recognition.conversation
    for url in (*conversation.homes, conversation.prefill):
        found = of.get(url)
        if found is not None and found.epoch == conversation.epoch:
            less = 1 if found.role is Role.PREFILL else 0
            residency.used(found, conversation.key, max(0, recognition.shared_tokens - less))
    return residency


def first_turn(of: int = 7) -> Recognition:
    """A recognised request of a new conversation."""
    return Recognition(Conversation(key(of), 0.0), Kind.NEW, 1)
