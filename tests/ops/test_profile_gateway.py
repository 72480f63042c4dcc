"""The gateway that `ppd-gateway profile` runs for itself: pods from the configuration, nothing else of production."""

from __future__ import annotations

from pathlib import Path

from gateway.core.pods import Role
from gateway.ops.config import load
from gateway.ops.profile.bench import for_measuring

PRODUCTION = """
prefill = ["http://p:1"]
decode = ["http://d:1"]
replica = ["http://r:1"]
host = "0.0.0.0"
port = 8000
insecure = true
policy = "local"
state_file = "state"
state = "redis://r:6379/0"
workers = 4
decode_max_in_flight = 3
queue_s = 2

[admin]
port = 9901

[canary]
percent = 20
state_file = "canary"

[timeouts]
prefill_s = 7
"""


def test_it_takes_no_port_no_state_and_no_canary_from_the_gateway_that_serves(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(PRODUCTION)
    config = for_measuring(load(file, {}, {}))
    assert (config.host, config.port, config.admin, config.workers) == ("127.0.0.1", 0, None, 1)
    assert (config.state, config.state_file, config.canary.state_file) == (None, None, None)
    assert (config.canary.percent, config.net.decode_max_in_flight, config.net.admission.on) == (100.0, 0, False)


def test_it_keeps_the_prefill_and_decode_pods_and_how_to_reach_them(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(PRODUCTION)
    config = for_measuring(load(file, {}, {}))
    assert config.pods == ((Role.PREFILL, "http://p:1"), (Role.DECODE, "http://d:1"))
    assert config.net.timeouts.prefill_s == 7
