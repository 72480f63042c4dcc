"""Settings of tenants, admission and targets, and what they mean together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import AdmissionRules
from gateway.core.slo import Targets
from gateway.ops.admission import MAX_QUEUE_S, load_tenants
from gateway.ops.config import Config, load
from gateway.ops.layers import ConfigError

D = {"decode": ["http://d0:8000"]}


def config(path: Path | None = None, **flags: Any) -> Config:
    return load(path, {}, {**D, **flags})


def test_nothing_is_on_by_default() -> None:
    found = config()
    assert found.net.admission == AdmissionRules()
    assert not found.net.admission.on
    assert not found.slo.on
    assert found.tenants is None


def test_targets_are_tables_in_tables_and_the_deadline_is_the_target_for_a_first_token(tmp_path: Path) -> None:
    file = tmp_path / "ppd.toml"
    file.write_text(
        'decode = ["http://d0:8000"]\n[admission]\nmax_tokens = 1000\n[slo]\nwindow_s = 60\n'
        "[slo.interactive]\nttft_p99_ms = 300\ntpot_p99_ms = 25\n[slo.batch]\ne2e_p99_s = 600\n"
    )
    found = load(file, {}, {})
    assert found.slo.window_s == 60
    assert found.slo.targets == {
        ServiceClass.INTERACTIVE: Targets(300, 25, None),
        ServiceClass.BATCH: Targets(None, None, 600),
    }
    assert found.net.classes.deadlines_s == {ServiceClass.INTERACTIVE: 0.3, ServiceClass.BATCH: math.inf}


def test_with_limits_nobody_waits_forever_and_queue_s_says_how_long() -> None:
    assert config(**{"admission.max_tokens": 5}).net.admission.queue_s == MAX_QUEUE_S
    assert config(**{"admission.max_tokens": 5, "queue_s": 2}).net.admission.queue_s == 2
    assert config(queue_s=2).net.admission == AdmissionRules(queue_s=2)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"tenants_file": "t"}, "flag --tenants-file: tenants_file: it needs api_keys"),
        (
            {"admission.vllm_priority": True, "allow_client_priority": True},
            "flag --admission-vllm-priority: admission.vllm_priority: not with allow_client_priority",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(flags: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**flags)
    assert str(error.value).startswith(complaint)


def test_a_bad_table_in_a_table_is_named_in_full(tmp_path: Path) -> None:
    file = tmp_path / "ppd.toml"
    file.write_text('decode = ["http://d0:8000"]\n[slo.express]\nttft_p99_ms = 3\n')
    with pytest.raises(ConfigError, match=r"slo\.express: unknown key"):
        load(file, {}, {})
    file.write_text('decode = ["http://d0:8000"]\n[slo.batch]\nttft_p99 = 3\n')
    with pytest.raises(ConfigError, match=r"slo\.batch\.ttft_p99: unknown key \(did you mean slo\.batch\.ttft_p99_ms"):
        load(file, {}, {})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[tenants.a]\nshare = 0", "tenants_file: tenants.a.share: must be a number above 0"),
        (b"\xff\xfe", "tenants_file: not UTF-8 text"),
        (None, "tenants_file: No such file"),
    ],
)
def test_a_bad_tenants_file_is_one_line_that_names_file_and_key(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "tenants"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_tenants(file)
    assert str(error.value).startswith(f"{file}: {complaint}")
