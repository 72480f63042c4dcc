"""The head of a reply is the same however the stream was cut into reads, and every event passes as it came."""

import msgspec
import pytest

from gateway.wire.prompts import message_head
from gateway.wire.sse import StreamTap

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


def event(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":' + msgspec.json.encode(text) + b"}}]}\n\n"


def told(reads: list[bytes]) -> tuple[bytes, bytes | None, bool]:
    tap = StreamTap(strip_usage=False)
    out = b"".join([tap.feed(read) for read in reads])
    return out, tap.reply_head, tap.reasoned


CASES = {
    "words": (["The ", "answer ", "is ", "42."], "The answer is 42.", False),
    "long": ([f"word{number} " for number in range(60)], "".join(f"word{number} " for number in range(60)), False),
    "white space first": ([" " * 300, "word " * 9, " " * 200, "more"], " " * 300 + "word " * 9 + " " * 200, False),
    "thought": (["<th", "ink>", "hm ", "hm</th", "ink>", "So: ", "yes"], None, True),
    "thought, told": (["<th", "ink>", "hm ", "</think>", "So: ", "yes"], "So: yes", True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_head_does_not_depend_on_how_the_stream_was_cut(name: str) -> None:
    texts, said, reasoned = CASES[name]
    events = [ROLE, *map(event, texts)]
    whole = b"".join(events)
    one_by_one, at_once = told(events), told([whole])
    in_pairs = told([b"".join(events[start : start + 2]) for start in range(0, len(events), 2)])
    cut = told([whole[start : start + 7] for start in range(0, len(whole), 7)])
    assert one_by_one == at_once == in_pairs == cut
    assert one_by_one == (whole, None if said is None else message_head(said), reasoned)
