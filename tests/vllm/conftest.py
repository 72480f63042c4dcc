"""Real vLLM pods for a test session, and a client.

`LOADTEST_VLLM_STATE` names the state file (or directory) of pods that are up already: they are used as they are and
left running. Otherwise the session starts its own and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest
import uvloop

from loadtest.vllm_cpu import environment
from loadtest.vllm_cpu.cluster import Cluster
from loadtest.vllm_cpu.errors import BuildError
from loadtest.vllm_cpu.spec import Role
from tests.vllm.support import PATIENCE_S, Client, VllmCluster, warm_up

LEASE_S = 12
"""Shorter than vLLM's 30 s, so that a test can sit one out."""

NUM_BLOCKS = 400
"""KV blocks of a pod: enough for the longest prompt, few enough that tests make it evict."""

STATE_VARIABLE = "LOADTEST_VLLM_STATE"


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


_left_running: list[Cluster] = []
"""Kept to the end: a process object that is dropped while its process runs is a ResourceWarning."""


@pytest.fixture(scope="session")
def vllm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmCluster]:
    """One prefill, two decode and one plain pod; every P–D pair has shaken hands."""
    state = os.environ.get(STATE_VARIABLE)
    if state:
        found = Path(state)
        cluster = Cluster.attach(found if found.is_dir() else found.parent)
        _left_running.append(cluster)
        yield _ready(cluster)
        return
    try:
        environment.ensure()
    except BuildError as error:
        pytest.skip(f"NO REAL vLLM: {error}")
    with Cluster.start(
        prefill=1,
        decode=2,
        plain=1,
        directory=tmp_path_factory.mktemp("vllm-pods"),
        bidirectional=[Role.PREFILL],
        connector_options={"kv_lease_duration": LEASE_S},
        engine_arguments=[
            "--trust-request-chat-template",
            "--enable-scale-out",
            *("--num-gpu-blocks-override", str(NUM_BLOCKS)),
        ],
    ) as cluster:
        yield _ready(cluster)


def _ready(cluster: Cluster) -> VllmCluster:
    prefill, decode, plain = (cluster.of_role(role) for role in (Role.PREFILL, Role.DECODE, Role.PLAIN))
    assert prefill, f"{cluster.directory}: no prefill pod"
    assert len(decode) >= 2, f"{cluster.directory}: fewer than two decode pods"
    assert plain, f"{cluster.directory}: no plain pod"
    pods = VllmCluster(prefill[0], decode[:2], plain[0])
    for pod in pods.decode:
        warm_up(pods.prefill, pod)
    return pods


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A patient client that opens a connection per request."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits, trust_env=False) as http:
        yield Client(http)
