"""What a hand-over puts on either leg, connector by connector."""

from __future__ import annotations

import msgspec
import pytest

from gateway.wire.answers import PrefillAnswer, read_prefill
from gateway.wire.contract import Api
from gateway.wire.fields import parse
from gateway.wire.handovers import Mooncake, NixlPull, NixlPush, Origin, Way, pushes, read_bootstrap
from gateway.wire.legs import prefill_body
from gateway.wire.usage import PrefillDetails

PULL = msgspec.Raw(b'{"do_remote_prefill":true,"remote_engine_id":"e","transfer_mode":"pull"}')
PUSH = msgspec.Raw(b'{"do_remote_prefill": true, "remote_engine_id": "e", "transfer_mode": "push"}')
OLD = msgspec.Raw(b'{"do_remote_prefill":true,"remote_engine_id":"e"}')
ORIGIN = Origin("http://10.0.0.1:8998", "engine-1", 3)


def answer(handover: msgspec.Raw | None, finish_reason: str | None = "length") -> PrefillAnswer:
    return PrefillAnswer(handover, None, PrefillDetails(None), finish_reason)


@pytest.mark.parametrize(("handover", "expected"), [(PULL, False), (PUSH, True), (OLD, False)])
def test_a_pods_answer_tells_pull_from_push(handover: msgspec.Raw, expected: bool) -> None:
    assert pushes(handover) is expected


def test_text_that_a_client_sent_cannot_look_like_push() -> None:
    quoted = msgspec.json.encode({"remote_request_id": '"transfer_mode":"push"', "transfer_mode": "pull"})
    assert not pushes(quoted)


@pytest.mark.parametrize("handover", [NixlPull(), NixlPush("abc")])
def test_nixl_passes_on_what_p_said_byte_for_byte(handover: NixlPull) -> None:
    assert handover.answered(answer(PULL)) is PULL
    assert handover.tell is None, "P must answer first"
    assert handover.answered(answer(None)) is None
    assert handover.answered(answer(PULL, "abort")) is None


def test_two_pushes_never_share_a_request_id() -> None:
    assert NixlPull().mark == ""
    assert NixlPush("abc").mark == "-abc"


def test_nothing_can_be_released_where_p_pushes() -> None:
    assert NixlPull().release(PULL) is PULL
    assert NixlPush("abc").release(PUSH) is None
    assert NixlPush("abc").release(PULL) is PULL, "it was not known yet that the pod is one of pull"


def test_mooncake_knows_both_legs_beforehand() -> None:
    handover = Mooncake("t1", ORIGIN)
    assert msgspec.json.decode(handover.ask) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "t1",
    }
    assert handover.tell is not None
    assert msgspec.json.decode(handover.tell) == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": "http://10.0.0.1:8998",
        "remote_engine_id": "engine-1",
        "transfer_id": "t1",
    }
    assert (handover.rank, handover.mark) == (3, "")


@pytest.mark.parametrize(("finish_reason", "kept"), [("length", True), ("stop", False), (None, False)])
def test_mooncake_keeps_blocks_only_of_a_request_that_was_cut(finish_reason: str | None, kept: bool) -> None:
    handover = Mooncake("t1", ORIGIN)
    assert handover.answered(answer(None, finish_reason)) is (handover.tell if kept else None)


def test_the_prefill_leg_asks_in_the_connectors_words() -> None:
    fields = parse(b'{"model":"m","prompt":"x","kv_transfer_params":{"transfer_id":"a client made this up"}}')
    leg = parse(prefill_body(Api.COMPLETIONS, fields, (), Mooncake("t1", ORIGIN).ask))
    assert msgspec.json.decode(leg["kv_transfer_params"])["transfer_id"] == "t1"


def test_a_mooncake_answer_of_vllm_is_read() -> None:
    body = b'{"choices":[{"finish_reason":"length","text":"x"}],"usage":{"prompt_tokens":3},"kv_transfer_params":null}'
    assert Mooncake("t1", ORIGIN).answered(read_prefill(body)) is not None


def test_a_bootstrap_servers_answer_is_read() -> None:
    body = (
        b'{"1":{"engine_id":"e_dp1","worker_addr":{"0":{"0":"tcp://10.0.0.1:5"}}},"0":{"engine_id":"e_dp0",'
        b'"worker_addr":{}}}'
    )
    assert read_bootstrap(body) == {0: "e_dp0", 1: "e_dp1"}
    assert read_bootstrap(b"{}") == {}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"x":{"engine_id":"e"}}', b'{"0":{}}', b"<html>"])
def test_another_answer_is_none(body: bytes) -> None:
    with pytest.raises(ValueError, match="bootstrap server"):
        read_bootstrap(body)


def test_the_settings_words_are_the_ways() -> None:
    assert [way.value for way in Way] == ["auto", "nixl", "nixl-push", "mooncake"]
