"""The asyncio driver of an engine."""

import pytest

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.language import NumberLanguage
from loadtest.engine.realtime import RealtimeEngine
from loadtest.engine.request import EngineRequest, Finish


async def no_pull(order):
    raise AssertionError(order)


async def test_outputs_come_until_the_finish():
    async with RealtimeEngine(Engine(profile.load("instant"), NumberLanguage()), no_pull) as running:
        outputs = [o async for o in running.generate(EngineRequest("a", [1, 2], 3, ignore_eos=True))]
    assert [output.finish for output in outputs] == [None, None, Finish.LENGTH]


async def test_leaving_early_aborts():
    engine = Engine(profile.load("instant"), NumberLanguage())
    async with RealtimeEngine(engine, no_pull) as running:
        stream = running.generate(EngineRequest("a", [1, 2], 1000, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        assert engine.num_requests == 0


class Broken(NumberLanguage):
    def next_token(self, *_: int, may_end: bool) -> int:
        raise ZeroDivisionError


async def test_when_the_engine_dies_every_request_ends_with_an_error(caplog):
    running = RealtimeEngine(Engine(profile.load("instant"), Broken()), no_pull)
    async with running:
        for name in ("during", "after"):
            outputs = [o.finish async for o in running.generate(EngineRequest(name, [1], 3))]
            assert outputs == [Finish.ERROR]
    assert running.dead
    assert "the engine died" in caplog.text


@pytest.mark.parametrize("scale", [1.0, 50.0])
async def test_simulated_time_runs_time_scale_times_as_fast(scale):
    async with RealtimeEngine(Engine(profile.load("instant"), NumberLanguage()), no_pull, time_scale=scale) as running:
        start = running.now()
        await running.wait_until(start + 0.02 * scale)
        assert running.now() - start >= 0.02 * scale * 0.999
