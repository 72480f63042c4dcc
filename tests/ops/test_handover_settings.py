"""How the operator says in which way pods hand over, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ops.config import ConfigError, load
from gateway.wire.handovers import Way

P, P2, D = "http://p:8000", "http://p2:8000", "http://d:8000"


def loaded(**flags: Any) -> Any:
    return load(None, {}, {"prefill": [P, P2], "decode": [D], **flags})


def test_nothing_needs_to_be_said() -> None:
    net = loaded().net
    assert (net.handover, net.mooncake_bootstraps, net.lease_s) == (Way.AUTO, {}, 30.0)
    assert (net.pairs.probe, net.pairs.enough, net.pairs.at_once, net.pairs.timeout_s) == (True, 8, 2, 15.0)


def test_bootstrap_servers_are_named_by_their_pods() -> None:
    net = loaded(handover="mooncake", mooncake_bootstraps=[f"{P}=http://10.0.0.1:9000", f"{P2}=http://p2:8998"]).net
    assert net.handover is Way.MOONCAKE
    assert net.mooncake_bootstraps == {P: "http://10.0.0.1:9000", P2: "http://p2:8998"}


@pytest.mark.parametrize(
    ("way", "said", "expected"), [("mooncake", None, 480.0), ("mooncake", 60, 60.0), ("nixl", None, 30.0)]
)
def test_the_lease_is_the_connectors_own_unless_said_otherwise(way: str, said: int | None, expected: float) -> None:
    flags = {} if said is None else {"lease_s": said}
    assert loaded(handover=way, **flags).net.lease_s == expected


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"handover": "pull"}, "handover: must be one of auto, nixl, nixl-push, mooncake"),
        ({"handover": "nixl-push", "readback": True}, "readback: pods with handover nixl-push cannot read back"),
        ({"handover": "mooncake", "readback": True}, "readback: pods with handover mooncake cannot read back"),
        ({"mooncake_bootstraps": [f"{P}=http://p:8998"]}, "only for handover = mooncake, not auto"),
        (
            {"handover": "mooncake", "mooncake_bootstraps": ["http://x:1=http://x:2"]},
            "http://x:1 is none of the prefill pods",
        ),
        ({"handover": "mooncake", "mooncake_bootstraps": ["p:8998"]}, "is written http://pod:8000=http://host:8998"),
        ({"handover": "mooncake", "mooncake_bootstraps": [f"{P}=p:8998"]}, "is not a URL like"),
        ({"pairs.enough": 0}, "pairs.enough: must be between"),
        ({"limits.idle_s": 0}, "limits.idle_s: must be a number of seconds above 0"),
    ],
)
def test_what_cannot_be_is_one_clear_line(flags: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(**flags)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_clients_silence_is_limited_as_said() -> None:
    limits = loaded(**{"limits.idle_s": 5, "limits.head_s": 2}).limits
    assert (limits.idle_s, limits.head_s, limits.body_s, limits.stall_s) == (5.0, 2.0, 30.0, 60.0)
