"""What the soak's client makes of answers, and what it reads in the gateway's log."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.live.client import Plain
from loadtest.soak.answers import NOT_OURS, judge
from loadtest.soak.gateway_log import GatewayLog
from loadtest.soak.ledger import Noticed

USAGE = b'"usage":{"completion_tokens":2}'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":"m"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}\n\n'
COUNT = b'data: {"choices":[],' + USAGE + b"}\n\n"
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"x"}}\n\n'
WHOLE = b'{"choices":[{"message":{"content":"ma"}}],' + USAGE + b"}"


def how(status: int, body: bytes, *, stream: bool = True, expected: str | None = "ma", fault: str | None = None) -> str:
    answer = Plain(status, body, "", fault, "")
    return judge(answer, stream=stream, max_tokens=2, expected=expected)[0]


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        pytest.param(ROLE + LAST + COUNT + DONE, "ok", id="complete"),
        pytest.param(ROLE + LAST + COUNT, "not well-formed: no [DONE]", id="no end"),
        pytest.param(ROLE + LAST + COUNT + DONE[:-1], "not well-formed: half an event", id="half an end"),
        pytest.param(ROLE + LAST + DONE, "no usage", id="no usage"),
        pytest.param(ROLE + COUNT + DONE, "no finish reason", id="no finish reason"),
        pytest.param(LAST + COUNT + DONE, NOT_OURS, id="another's text"),
        pytest.param(ROLE + LAST + COUNT.replace(b"2", b"3") + DONE, NOT_OURS, id="another count"),
        pytest.param(ROLE + ERROR, "broken", id="an error event"),
        pytest.param(ROLE + ERROR + DONE, "broken", id="an error event and an end"),
        pytest.param(ROLE + b'data: {"choi\n\n', "not well-formed: JSONDecodeError", id="half a chunk"),
        pytest.param(b"", "not well-formed: half an event", id="nothing"),
    ],
)
def test_a_stream_is_fine_only_with_its_end_its_usage_and_its_own_text(body: bytes, verdict: str) -> None:
    assert how(200, body) == verdict


def test_answers_that_are_no_streams() -> None:
    assert how(200, WHOLE, stream=False) == "ok"
    assert how(200, WHOLE, stream=False, expected="xa") == NOT_OURS
    assert how(200, WHOLE, stream=False, expected=None) == "ok"
    assert how(200, WHOLE[:-1], stream=False) == "not well-formed: JSONDecodeError"
    assert how(503, b'{"error":{"message":"x"}}') == "503"
    assert how(503, b"Service Unavailable") == "not well-formed: JSONDecodeError"
    assert how(502, b'{"detail":"x"}') == "not well-formed: KeyError"
    assert how(0, b"", fault="reset") == "connection: reset"


async def test_the_log_says_which_pods_a_failed_request_met() -> None:
    log = GatewayLog(lambda: 7.5)
    log.began_s = 5.0
    log.take(
        b"t INFO ppd_gateway.access id=a status=200 outcome=ok method=POST prefill=http://p0 answered_by=http://d0\n"
        b"t WARNING ppd_gateway.fault fault=reset id=b pod=http://d1 detail='it broke'\n"
        b"t INFO ppd_gateway.access id=b status=502 outcome=failed method=POST prefill=http://p0 holder=http://d1"
    )
    assert dict(log.met) == {"b": {"http://p0", "http://d1"}}
    assert log.noticed == [Noticed("reset", "http://d1", "b", 2.5)]
    assert log.bugs == []


async def test_the_log_tells_of_bugs_and_counts_tasks() -> None:
    log = GatewayLog(lambda: 0.0)
    counts = log.next_counts()
    log.take(b"t ERROR asyncio Task exception was never retrieved\nsoak tasks=11 blocks=300")
    assert log.bugs == ["t ERROR asyncio Task exception was never retrieved"]
    assert await asyncio.wait_for(counts, 1) == (11, 300)
