"""What a request through simulated pods leaves in the metrics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gateway.core.reasons import ReasonClass
from gateway.net.records import RequestRecord
from tests.net.publisher import until
from tests.net.world import CHAT, LONG, World, assistant, user, world
from tests.ops.exposition import Samples, found, samples
from tests.tables import arm, write_set


async def page_of(w: World) -> Samples:
    return samples((await w.get("/metrics")).body.decode())


async def say(w: World, messages: list[dict[str, str]], **more: Any) -> tuple[RequestRecord, str]:
    """A streamed turn: its record, and what was said."""
    count = len(w.watcher.records)
    body = {"model": "sim", "messages": messages, "max_tokens": 12, "stream": True, **more}
    reply = await w.post(CHAT, body)
    assert reply.status == 200
    return await w.record(count + 1), reply.streamed_text


async def test_a_streams_gaps_are_as_many_as_the_reads_and_as_long_as_the_stream() -> None:
    async with world(prefill=1, decode=1) as w:
        record, _ = await say(w, [user()], max_tokens=40)
        assert record.gaps is not None
        assert record.output_tokens is not None
        assert record.tpot_s is not None
        assert 1 <= sum(record.gaps) <= record.output_tokens + 3
        assert record.gaps_s == pytest.approx(record.tpot_s * (record.output_tokens - 1))
        page = await page_of(w)
        assert found(page, "ppd_inter_token_latency_seconds_count", route="pd", turn="1") == sum(record.gaps)
        assert found(page, "ppd_inter_token_latency_seconds_sum", route="pd") == pytest.approx(record.gaps_s)


async def test_a_whole_answer_has_no_gaps() -> None:
    async with world(prefill=1, decode=1) as w:
        await w.chat([user()])
        assert (await w.record(1)).gaps is None


async def test_a_turn_that_the_table_keeps_on_d_has_a_score_a_forecast_and_avoided_kv(tmp_path: Path) -> None:
    """S is 0.8 with these numbers: 80 % less to wait for, nothing slower."""
    table = write_set(tmp_path / "t", {"1P_1D": (arm(100, 10), arm(20, 10))})
    async with world(1, 1, policy="ppd", table=str(table)) as w:
        first = [user()]
        one, said = await say(w, first)
        two, _ = await say(w, [*first, assistant(said), user("more " + LONG)])
        assert (one.reason_class, one.score, one.forecast_ttft_s) == (ReasonClass.FIRST_TURN, None, None)
        assert (one.moved_tokens, one.avoided_tokens) == (one.prompt_tokens, None)
        assert (two.route, two.reason_class) == ("local", ReasonClass.SCORE)
        assert two.score == pytest.approx(0.8)
        assert (two.forecast_ttft_s, two.forecast_tpot_s) == (pytest.approx(0.02), pytest.approx(0.01))
        assert two.prompt_tokens is not None
        assert two.cached_tokens is not None
        assert (two.moved_tokens, two.avoided_tokens) == (None, two.prompt_tokens - two.cached_tokens)
        page = await page_of(w)
        assert found(page, "ppd_decision_score_bucket", route="local", le="0.75") == 0
        assert found(page, "ppd_decision_score_bucket", route="local", le="1.0") == 1
        assert found(page, "ppd_decision_seconds_count") == 2
        assert two.ttft_s is not None
        assert found(page, "ppd_ttft_prediction_ratio_sum", route="local") == pytest.approx(two.ttft_s / 0.02)
        assert found(page, "ppd_kv_moved_tokens_total", leg="handover") == one.prompt_tokens
        assert found(page, "ppd_kv_avoided_tokens_total", route="local") == two.avoided_tokens
        assert found(page, "ppd_table_info", model="sim", gpu="test") == 1


async def test_a_second_turn_through_p_moves_only_what_d_lacks() -> None:
    async with world(1, 1, policy="pd") as w:
        first = [user()]
        one, said = await say(w, first)
        two, _ = await say(w, [*first, assistant(said), user("more " + LONG)])
        assert (two.route, two.reason_class) == ("pd", ReasonClass.POLICY)
        assert one.prompt_tokens is not None
        assert two.prompt_tokens is not None
        assert two.moved_tokens is not None
        assert 0 < two.moved_tokens <= two.prompt_tokens - one.prompt_tokens // 16 * 16


async def test_a_model_that_no_pod_names_is_other() -> None:
    async with world(1, 1) as w:
        await until(lambda: all(pod.facts.models == ("sim",) for pod in w.gateway.parts.fleet))
        await w.chat([user()])
        await w.chat([user()], model="made up by a stranger")
        models = {dict(labels).get("gen_ai_request_model") for name, labels in await page_of(w) if "gen_ai" in name}
        assert models == {"sim", "other"}


async def test_what_a_pod_says_it_fetched_makes_tokens_into_bytes() -> None:
    async with world(1, 1) as w:
        record, _ = await say(w, [user()])
        d = w.gateway.parts.fleet.get(w.decode[0].url)
        assert d is not None
        await w.gateway.health.look(d)
        page = await page_of(w)
        each = d.facts.fetched_bytes / d.facts.fetched_tokens
        assert found(page, "ppd_kv_bytes_per_token") == pytest.approx(each)
        assert record.moved_tokens is not None
        assert found(page, "ppd_kv_moved_bytes_total", leg="handover") == pytest.approx(each * record.moved_tokens)


async def test_a_decision_in_shadow_shows_its_score_under_the_route_that_was_taken(tmp_path: Path) -> None:
    table = write_set(tmp_path / "t", {"1P_1D": (arm(100, 10), arm(20, 10))})
    async with world(1, 1, policy="ppd", table=str(table), **{"canary.shadow": True}) as w:
        first = [user()]
        _, said = await say(w, first)
        two, _ = await say(w, [*first, assistant(said), user("more " + LONG)])
        assert (two.route, two.score, two.forecast_ttft_s) == ("pd", pytest.approx(0.8), None)
        page = await page_of(w)
        assert found(page, "ppd_decision_score_bucket", route="pd", arm="baseline", le="1.0") == 1
        assert found(page, "ppd_canary_shadow_decisions_total", route="local") == 1


async def test_kv_events_have_a_lag_that_is_no_longer_than_the_test() -> None:
    began = time.monotonic()
    options = {"decode": {"kv_events": True, "block_size": 16, "buffer_steps": 30}}
    async with world(1, 1, pod_of=options, pod={"block_size": 16}) as w:
        await w.decode[0].until(lambda: w.decode[0].events.subscribers == 1)
        d = w.gateway.parts.fleet.get(w.decode[0].url)
        assert d is not None
        await say(w, [user()])
        await until(lambda: w.gateway.parts.residency.view(d, 0).batches > 0)
        lag = found(await page_of(w), "ppd_kv_event_lag_seconds", pod=d.url)
        assert 0 < lag < time.monotonic() - began
