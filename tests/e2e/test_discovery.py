"""The installed command that finds its pods itself: started before them, told of changes, and stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp

from loadtest.pod.simulated import SimulatedPod
from tests.e2e.test_serve import environment, pods, run, served
from tests.net.fake_kubernetes import NAMESPACE, TOKEN, fake_kubernetes, kube_pod

QUIET = ("--policy", "pd", "--port", "0", "--selftest", "false", "--health-interval-s", "0.05")


async def ask(url: str) -> int:
    body: dict[str, Any] = {"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as answer:
        return answer.status


async def test_a_gateway_that_watches_a_cluster(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="utf-8")
    async with pods() as (prefill, decode), SimulatedPod(role="decode") as another, fake_kubernetes() as fake:
        fake.put(kube_pod("p", prefill.port, "prefill"))
        fake.put(kube_pod("d", decode.port))
        where = (
            "--kubernetes-api",
            fake.url,
            "--kubernetes-namespace",
            NAMESPACE,
            "--kubernetes-token-file",
            str(token),
        )
        async with served("--kubernetes-selector", "app=vllm", *where, *QUIET) as gateway:
            assert any("pods: 1 prefill, 1 decode, 0 replica" in line for line in gateway.lines)
            assert await ask(gateway.url) == 200
            fake.put(kube_pod("e", another.port))
            await gateway.said(f"pod={another.url} role=decode up=1")
            fake.terminate("d")
            await gateway.said(f"pod={decode.url} role=decode removed=1")
            assert await ask(gateway.url) == 200
        assert gateway.process.returncode == 0
        assert TOKEN not in "".join(gateway.lines)


async def test_a_gateway_that_reads_a_file_and_looks_again_at_sighup(tmp_path: Path) -> None:
    async with pods() as (prefill, decode):
        path = tmp_path / "pods.json"
        named = [{"url": decode.url, "role": "decode"}]
        path.write_text(json.dumps(named), encoding="utf-8")
        async with served("--discovery-file", str(path), *QUIET) as gateway:
            assert await ask(gateway.url) == 200
            path.write_text(json.dumps([*named, {"url": prefill.url, "role": "prefill"}]), encoding="utf-8")
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.said(f"pod={prefill.url} role=prefill up=1")
            path.write_text("[", encoding="utf-8")
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.said(f"new file:{path} refused, the old ones stay in use: not valid JSON")
            assert await ask(gateway.url) == 200
        assert gateway.process.returncode == 0


async def test_config_check_says_where_pods_come_from(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        'prefill = ["dns+http://prefill.ns:8000"]\n[kubernetes]\nselector = "app=vllm"\nnamespace = "ns"\n'
        'api = "https://10.0.0.1"\n[discovery]\nfile = "/etc/pods.json"\n',
        encoding="utf-8",
    )
    status, out, _ = await run("config", "check", str(file))
    assert status == 0
    found = "dns+http://prefill.ns:8000, /etc/pods.json, Kubernetes pods app=vllm in ns"
    assert out == f"{file}: ok (policy ppd; pods: 0 prefill, 0 decode, 0 replica, more from {found})\n"


async def test_what_discovery_needs_is_loaded_only_where_it_is_configured() -> None:
    code = "import sys, gateway.ops.cli, gateway.ops.serve; print(*sorted({'aiohttp', 'dns'} & sys.modules.keys()))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env=environment()
    )
    out, _ = await process.communicate()
    assert (process.returncode, out.strip()) == (0, b"")
