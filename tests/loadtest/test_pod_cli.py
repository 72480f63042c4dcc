"""`python -m loadtest.pod`."""

import asyncio
import signal
import sys

import aiohttp

from loadtest.pod.__main__ import parse


def test_flags_become_options():
    options = parse(
        ["--role", "decode", "--port", "0", "--num-blocks", "99", "--bandwidth-gbps", "100", "--lease-s", "5"]
    )
    assert (options.role, options.num_blocks, options.bandwidth_gbps, options.lease_s) == ("decode", 99, 100.0, 5.0)
    assert options.resolved().transfer.bandwidth_bytes_per_s == 12.5e9
    assert options.resolved().name == "h100-llama3.1-8b"


def test_a_pod_is_stock_unless_told_otherwise():
    stock = parse([])
    assert (stock.prefix_caching, stock.prompt_tokens_details, stock.scale_out, stock.kv_events) == (
        True,
        True,
        False,
        False,
    )
    flags = ["--no-prefix-caching", "--no-prompt-tokens-details", "--enable-scale-out", "--kv-events", "--no-replay"]
    told = parse([*flags, "--event-port", "5", "--replay-port", "6", "--name", "p", "--buffer-steps", "7"])
    assert (told.prefix_caching, told.prompt_tokens_details, told.scale_out, told.kv_events, told.replay) == (
        False,
        False,
        True,
        True,
        False,
    )
    assert (told.event_port, told.replay_port, told.name, told.buffer_steps) == (5, 6, "p", 7)


async def test_the_first_line_is_the_url_and_sigterm_ends_it():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest.pod", "--profile", "instant", "--model", "m", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == "m"
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
