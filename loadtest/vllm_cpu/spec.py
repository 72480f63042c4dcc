"""What a pod is: its role, its ports, and the command line and variables that follow from them.

Rule of this room: no process is started here; a spec is data and the same spec gives the same command.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum

from loadtest.vllm_cpu.layout import Layout
from loadtest.vllm_cpu.ports import HOST

SERVED_MODEL_NAME = "tiny"
PORTS_PER_POD = 4


class Role(StrEnum):
    """PLAIN has no KV connector at all: the reference the others are compared with."""

    PREFILL = "prefill"
    DECODE = "decode"
    PLAIN = "plain"


class Handover(StrEnum):
    """How KV gets from P to D, named as the gateway's setting `handover` does."""

    NIXL = "nixl"
    NIXL_PUSH = "nixl-push"
    MOONCAKE = "mooncake"


CONNECTOR = {
    Handover.NIXL: "NixlConnector",
    Handover.NIXL_PUSH: "NixlPushConnector",
    Handover.MOONCAKE: "MooncakeConnector",
}
KV_ROLE = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
READBACK: dict[str, object] = {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 16}

IN_PROCESS_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Runs the model inside EngineCore, as a one-GPU pod does by default. On CPU vLLM turns the short name
"uni" into a worker process, and both processes then spin for a second after each message: with two busy
cores leg 2 of 900 tokens took 1 to 3 s (some 30 s) that way, 0.1 s this way, with 0.6 GiB less per pod."""


@dataclass(frozen=True)
class PodSpec:
    """One pod.

    `kv_gib` is whole GiB of KV memory (262,144 tokens of the tiny model each); `engine_arguments` come last
    on the command line, so they win; `connector_options` go into `kv_connector_extra_config`, for example
    `{"kv_lease_duration": 12}`. With Mooncake a prefill pod's `side_channel_port` is its bootstrap server's.
    """

    name: str
    role: Role
    http_port: int
    side_channel_port: int
    event_port: int
    replay_port: int
    kv_gib: int = 1
    bidirectional: bool = False
    max_model_len: int = 8192
    engine_arguments: tuple[str, ...] = ()
    connector_options: dict[str, object] = field(default_factory=dict)
    handover: Handover = Handover.NIXL

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def event_endpoint(self) -> str:
        """Where to connect a ZMQ SUB socket."""
        return f"tcp://{HOST}:{self.event_port}"

    @property
    def replay_endpoint(self) -> str:
        """Where to connect a ZMQ REQ or DEALER socket that asks for missed events."""
        return f"tcp://{HOST}:{self.replay_port}"

    @property
    def bootstrap_endpoint(self) -> str:
        """Where a prefill pod with MooncakeConnector tells who it is."""
        return f"http://{HOST}:{self.side_channel_port}"

    @property
    def event_topic(self) -> str:
        return f"kv@{self.name}"

    def command(self, layout: Layout) -> list[str]:
        """The engine's argument vector."""
        return [
            *(str(layout.python), "-m", "vllm.entrypoints.cli.main", "serve", str(layout.model)),
            *("--served-model-name", SERVED_MODEL_NAME),
            *("--host", HOST, "--port", str(self.http_port)),
            *("--max-model-len", str(self.max_model_len), "--dtype", "float32", "--enforce-eager"),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--block-size", "32", "--max-num-seqs", "32"),
            *("--distributed-executor-backend", IN_PROCESS_EXECUTOR),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--kv-events-config", json.dumps(self._events())),
            *self._transfer(),
            *self.engine_arguments,
        ]

    def variables(self, layout: Layout) -> dict[str, str]:
        """What the pod's process sees besides the caller's (cleaned) variables."""
        mooncake = {
            "LD_LIBRARY_PATH": str(layout.mooncake_libraries),
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.side_channel_port),
        }
        return (mooncake if self.handover is Handover.MOONCAKE else {}) | {
            "HF_HOME": str(layout.home / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "tcp,sm,self",
            "VLLM_CACHE_ROOT": str(layout.home / "vllm"),
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": HOST,
            "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_channel_port),
            "VLLM_NO_USAGE_STATS": "1",
        }

    def _events(self) -> dict[str, object]:
        """The publisher binds only to an endpoint with a wildcard in it; with an address it connects."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.event_port}",
            "replay_endpoint": self.replay_endpoint,
            "topic": self.event_topic,
        }

    def _transfer(self) -> tuple[str, ...]:
        if self.role not in KV_ROLE:
            return ()
        connector: dict[str, object] = {
            "kv_connector": CONNECTOR[self.handover],
            "kv_role": KV_ROLE[self.role],
            "kv_buffer_device": "cpu",
        }
        over_tcp = {"mooncake_protocol": "tcp"} if self.handover is Handover.MOONCAKE else {}
        options = (READBACK if self.bidirectional else {}) | over_tcp | self.connector_options
        if options:
            connector["kv_connector_extra_config"] = options
        return ("--kv-transfer-config", json.dumps(connector))
