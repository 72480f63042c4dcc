"""The command's life: SIGTERM, SIGHUP, log formats, the canary from another terminal; real processes throughout."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.ops.config import SIMULATED_TABLE
from loadtest.pod.simulated import SimulatedPod
from tests.e2e.test_serve import NO_SELFTEST, QUESTION, Served, pods, run, served
from tests.e2e.test_workers import children, two_workers, until
from tests.net.cluster import needs_server


async def ask(url: str, method: str, path: str, body: Any = None) -> Any:
    async with aiohttp.ClientSession() as session:
        async with session.request(method, url + path, json=body) as answer:
            return await answer.json()


async def admin_url(gateway: Served) -> str:
    line = await gateway.said("admin API on ")
    found = re.search(r"admin API on (http://[^\s\"]+)", line)
    assert found
    return found[1]


async def talk(url: str, session: str, stream: bool = False) -> int:
    body = {"model": "sim", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8, "stream": stream}
    async with aiohttp.ClientSession() as client:
        headers = {"X-Session-ID": session}
        async with client.post(url + "/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.read()
            return answer.status


def write(path: Path, prefill: SimulatedPod, decode: list[SimulatedPod], *lines: str) -> None:
    urls = ", ".join(f'"{pod.url}"' for pod in decode)
    text = "\n".join([f'prefill = ["{prefill.url}"]', f"decode = [{urls}]", "port = 0", "selftest = false", *lines])
    path.write_text(text + "\n")


@pytest.mark.parametrize("policy", ["pd", "local", "threshold", "ppd"])
async def test_a_hang_up_kills_no_gateway_whatever_its_policy(policy: str) -> None:
    async with pods() as (prefill, decode):
        arguments = ("--prefill", prefill.url, "--decode", decode.url, "--port", "0", "--policy", policy)
        async with served(*arguments, *NO_SELFTEST) as gateway:
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.said("configuration read again: nothing in it that changes")
            assert await talk(gateway.url, "a") == 200
            gateway.process.send_signal(signal.SIGTERM)
            assert await gateway.process.wait() == 0


async def test_a_hang_up_reads_pods_weights_canary_and_limits_anew(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    async with pods() as (prefill, decode), SimulatedPod(role="decode") as spare:
        write(config, prefill, [decode], 'policy = "local"', "[admin]", "port = 0")
        async with served("--config", str(config)) as gateway:
            api = await admin_url(gateway)
            lines = ['policy = "pd"', 'weights = "interactive"', "decode_max_in_flight = 7"]
            write(config, prefill, [decode, spare], *lines, "[admin]", "port = 0", "[canary]", "percent = 25")
            gateway.process.send_signal(signal.SIGHUP)
            line = await gateway.said("configuration read again")
            assert set(line.partition("again: ")[2].strip().split(", ")) == {
                "decode",
                "weights",
                "decode_max_in_flight",
                "canary.percent",
            }
            assert "these take effect at the next start only: policy" in await gateway.said("next start only")
            assert await ask(api, "GET", "/api/v1/weights") == {"w_ttft": 2.0, "w_tpot": 1.0}
            assert (await ask(api, "GET", "/api/v1/canary"))["percent"] == 25.0
            settings = (await ask(api, "GET", "/api/v1/config"))["settings"]
            assert (settings["policy"], settings["decode_max_in_flight"]) == ("local", 7)
            await gateway.said(f"pod={spare.url} role=decode up=1")
            write(config, prefill, [spare], *lines, "[admin]", "port = 0", "[canary]", "percent = 25")
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.said(f"pod={decode.url} role=decode removed=1")
            assert await talk(gateway.url, "a") == 200


async def test_a_configuration_that_is_not_good_is_refused_and_the_old_stays(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    async with pods() as (prefill, decode):
        write(config, prefill, [decode], 'policy = "local"', 'weights = "interactive"', "[admin]", "port = 0")
        async with served("--config", str(config)) as gateway:
            api = await admin_url(gateway)
            write(config, prefill, [], 'weights = "throughput"')
            gateway.process.send_signal(signal.SIGHUP)
            line = await gateway.said("reload refused, the old configuration stays")
            assert "decode: at least one decode pod is needed" in line
            assert (await ask(api, "GET", "/api/v1/weights"))["w_ttft"] == 2.0
            assert await talk(gateway.url, "a") == 200


async def test_a_table_that_is_not_good_is_refused_and_the_old_stays(tmp_path: Path) -> None:
    table = tmp_path / "table"
    shutil.copytree(SIMULATED_TABLE, table)
    async with pods() as (prefill, decode):
        arguments = ("--prefill", prefill.url, "--decode", decode.url, "--port", "0", "--table", str(table))
        async with served(*arguments, *NO_SELFTEST) as gateway:
            (table / "manifest.json").write_text("{}")
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.said("new table set refused, the old one stays in use")
            assert await talk(gateway.url, "a") == 200


async def test_at_the_drain_timeout_what_is_left_is_cut_and_the_state_is_written(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with pods() as (prefill, decode):
        arguments = ("--prefill", prefill.url, "--decode", decode.url, "--port", "0", "--policy", "local")
        more = ("--drain-timeout-s", "0.3", "--state-file", str(state))
        async with served(*arguments, *more, *NO_SELFTEST) as gateway:
            assert await talk(gateway.url, "first") == 200
            decode.fault("slow_headers", seconds=20)
            hanging = asyncio.create_task(talk(gateway.url, "second"))
            await until(lambda: len(decode.requests) == 2)
            gateway.process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await hanging
            assert await gateway.process.wait() == 0
        assert any("stopping with 1 requests unfinished" in line for line in gateway.lines)
        assert state.stat().st_size > 0


async def test_the_old_name_of_the_drain_timeout_is_answered_with_the_new_one(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text('decode = ["http://d:1"]\nshutdown_grace_s = 5\n')
    status, _, err = await run("config", "check", str(config))
    assert status == 2
    assert err == f"ppd-gateway: {config}: shutdown_grace_s: unknown key (it is now called drain_timeout_s)\n"


@pytest.mark.parametrize("log_format", ["json", "auto"])
async def test_as_json_every_line_is_an_object_and_none_has_a_secret_or_a_clients_words(log_format: str) -> None:
    async with pods() as (prefill, decode):
        arguments = ("--prefill", prefill.url, "--decode", decode.url, "--port", "0", "--policy", "local")
        async with served(*arguments, "--log-format", log_format, *NO_SELFTEST) as gateway:
            async with aiohttp.ClientSession(headers={"Authorization": "Bearer sk-hush"}) as client:
                body = {"model": "sim", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8}
                async with client.post(gateway.url + "/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200
        lines = [json.loads(line) for line in gateway.lines]
        assert all(line["time"].endswith("Z") and line["level"] and line["logger"] for line in lines)
        [request] = [line for line in lines if line.get("event") == "request"]
        assert (request["route"], request["arm"], request["turn"], request["stream"]) == ("pd", "canary", 1, False)
        assert isinstance(request["ttft_ms"], float)
        assert {line["pod"] for line in lines if line.get("event") == "pod"} == {prefill.url, decode.url}
        text = "".join(gateway.lines)
        assert "hush" not in text
        assert QUESTION[:20] not in text


async def test_the_canary_from_another_terminal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the-token\n")
    token.chmod(0o600)
    async with pods() as (prefill, decode):
        arguments = ("--prefill", prefill.url, "--decode", decode.url, "--port", "0", "--policy", "local")
        more = ("--admin-port", "0", "--admin-token-file", str(token))
        async with served(*arguments, *more, *NO_SELFTEST) as gateway:
            where = ("--admin", await admin_url(gateway), "--token-file", str(token))

            async def canary(*words: str) -> tuple[int, str, str]:
                return await run("canary", *words, *where)

            assert (await canary("status"))[1] == "canary on, 100 % of the conversations: as configured\n"
            assert (await canary("set", "10"))[1].startswith("canary on, 10 % of the conversations: set by an operator")
            assert (await canary("off"))[1].startswith("canary off, 10 % of the conversations: turned off by an op")
            assert (await canary("on"))[1].startswith("canary on, 10 % of the conversations: turned on by an operator")
            status, _, err = await canary("set", "110")
            assert (status, err) == (2, "ppd-gateway: canary set: a percentage must be between 0 and 100\n")
            status, _, err = await run("canary", "status", *where[:2])
            assert (status, err.endswith("The token is missing or wrong.\n")) == (2, True)
        assert "the-token" not in "".join(gateway.lines)
    status, _, err = await canary("status")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "no admin API answers there" in err


async def test_the_admin_api_for_others_needs_a_token() -> None:
    status, _, err = await run("serve", "--decode", "http://d:1", "--admin-host", "0.0.0.0", "--admin-port", "0")
    assert status == 2
    assert err == (
        "ppd-gateway: flag --admin-host: admin.host: others reach 0.0.0.0: give the admin API a token "
        "(admin.token_file)\n"
    )


# Several workers


def counted(gateway: Served, word: str) -> Callable[[], bool]:
    return lambda: sum(word in line for line in gateway.lines) >= 2


@needs_server
async def test_a_change_reaches_every_worker_and_one_that_is_started_later(tmp_path: Path) -> None:
    state = tmp_path / "canary.json"
    async with two_workers("--admin-port", "0", "--canary-state-file", str(state)) as (gateway, _):
        api = await admin_url(gateway)
        assert (await ask(api, "GET", "/api/v1/health"))["workers"] == 2
        assert (await ask(api, "PUT", "/api/v1/canary", {"state": "off"}))["state"] == "off"
        await until(counted(gateway, "canary off (100 %)"))
        await ask(api, "PUT", "/api/v1/weights", {"w_ttft": 3, "w_tpot": 1})
        spare = {"url": "http://127.0.0.1:1", "role": "decode"}
        await ask(api, "POST", "/api/v1/pods", spare)
        await until(counted(gateway, "pod=http://127.0.0.1:1 role=decode added=1"))
        for number in range(12):
            assert await talk(gateway.url, f"s{number}") == 200
        decided = (await ask(api, "GET", "/api/v1/decisions"))["decisions"]
        assert len(decided) == 12
        assert {each["arm"] for each in decided} == {"baseline"}
        one = (await ask(api, "GET", f"/api/v1/conversations/{decided[0]['conversation']}"))["turn"]
        assert one == 1
        os.kill(children(gateway)[0], signal.SIGKILL)
        await until(lambda: sum("added=1" in line for line in gateway.lines) >= 3)
        await until(lambda: sum("canary off (100 %)" in line for line in gateway.lines) >= 3)


@needs_server
async def test_a_hang_up_reaches_every_worker() -> None:
    async with two_workers() as (gateway, _):
        gateway.process.send_signal(signal.SIGHUP)
        await until(counted(gateway, "configuration read again"))
