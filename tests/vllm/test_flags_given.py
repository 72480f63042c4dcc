"""The flags that the manifests and the doctor give are flags of the real `vllm serve`, and mean what they should."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.ops.doctor import judge_fleet, judge_pods
from gateway.ops.doctor.findings import connector_flag
from loadtest.vllm_cpu import environment
from loadtest.vllm_cpu.errors import BuildError
from loadtest.vllm_cpu.layout import Layout

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
for argv in json.loads(sys.argv[1]):
    args = parser.parse_args(argv)
    transfer, events = args.kv_transfer_config, args.kv_events_config
    print("PARSED", json.dumps({
        "model": args.model_tag, "served": args.served_model_name, "port": args.port, "block": args.block_size,
        "length": args.max_model_len, "caching": args.enable_prefix_caching,
        "details": args.enable_prompt_tokens_details, "scale_out": args.enable_scale_out,
        "connector": transfer and transfer.kv_connector, "role": transfer and transfer.kv_role,
        "extra": transfer and transfer.kv_connector_extra_config, "events": events and events.enable_kv_cache_events,
        "endpoint": events and events.endpoint, "replay": events and events.replay_endpoint}))
"""
SIMPLE = (
    "--enable-prefix-caching",
    "--enable-prompt-tokens-details",
    "--enable-scale-out",
    "--block-size 16",
    "--max-model-len 8192",
    "--served-model-name other",
)


def parsed(*argvs: list[str]) -> list[dict[str, Any]]:
    """What vLLM's own parser makes of each of these command lines."""
    try:
        environment.ensure()
    except BuildError as error:
        pytest.skip(f"NO REAL vLLM: {error}")
    command = [str(Layout.default().python), "-c", PARSE, json.dumps(argvs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd="/")
    lines = [line.removeprefix("PARSED ") for line in done.stdout.splitlines() if line.startswith("PARSED ")]
    assert len(lines) == len(argvs), done.stderr[-2000:]
    return [json.loads(line) for line in lines]


def test_the_real_parser_takes_them() -> None:
    manifests = {}
    for role in ("prefill", "decode"):
        text = (ROOT / "deploy/k8s/vllm" / f"{role}.yaml").read_text(encoding="utf-8")
        (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["vllm", "serve", MODEL]
        manifests[role] = [MODEL, *container["args"]]
    connectors = [
        shlex.split(connector_flag(name, role))
        for name in sorted(set(judge_fleet.CONNECTORS.values()))
        for role in ("kv_producer", "kv_consumer")
    ]
    said = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in (judge_fleet, judge_pods)]
    assert all(any(flag.split()[0] in text for text in said) for flag in SIMPLE)
    simple = [word for flag in SIMPLE for word in flag.split()]
    p, d, plain, *ours = parsed(
        manifests["prefill"], manifests["decode"], [*shlex.split(judge_pods.EVENTS_FLAG), *simple], *connectors
    )
    for pod, role in ((p, "kv_producer"), (d, "kv_consumer")):
        assert (pod["model"], pod["port"], pod["connector"], pod["role"]) == (MODEL, 8000, "NixlConnector", role)
        assert pod["caching"]
        assert pod["details"]
        assert pod["events"]
    assert p["extra"]["bidirectional_kv_xfer"] is True
    assert p["scale_out"]
    assert "bidirectional_kv_xfer" not in d["extra"]
    assert (plain["caching"], plain["details"], plain["scale_out"], plain["events"]) == (True, True, True, True)
    assert (plain["block"], plain["length"], plain["served"]) == (16, 8192, ["other"])
    assert (plain["endpoint"], plain["replay"]) == ("tcp://*:5557", "tcp://*:5558")
    assert [(pod["connector"], pod["role"]) for pod in ours] == [
        (name, role)
        for name in ("MooncakeConnector", "NixlConnector", "NixlPushConnector")
        for role in ("kv_producer", "kv_consumer")
    ]
