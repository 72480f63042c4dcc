"""The probes themselves: every one is answered by a simulated pod, and shapes see what they should."""

import json

import pytest

from loadtest.pod import probes
from loadtest.pod.probes import PROBES, shape_of, shape_of_stream


def test_names_are_unique():
    assert len({probe.name for probe in PROBES}) == len(PROBES)


@pytest.mark.parametrize("probe", [p for p in PROBES if p.where == "plain"], ids=lambda probe: probe.name)
async def test_a_simulated_pod_answers_every_probe_without_a_server_error(client, plain, probe):
    if probe.method == "GET":
        answer = await client.get(plain, probe.path)
    else:
        answer = await client.post(plain, probe.path, probe.payload("sim"), dict(probe.headers))
    assert answer.status < 500
    assert probes.shape_of_answer(answer.status, answer.headers, answer.raw)["status"] == answer.status


def test_a_shape_sees_key_order_and_nulls_but_not_values():
    assert shape_of({"a": 1, "b": None}) == shape_of({"a": 2.5, "b": None})
    assert shape_of({"a": 1, "b": None}) != shape_of({"b": None, "a": 1})
    assert shape_of({"a": 1}) != shape_of({"a": None})
    assert shape_of({"finish_reason": "stop"}) != shape_of({"finish_reason": "length"})


def test_the_shape_of_a_stream_forgets_how_many_events_there_were():
    def stream(count: int) -> str:
        event = json.dumps({"choices": [{"index": 0, "text": "x"}]})
        return f"data: {event}\n\n" * count + "data: [DONE]\n\n"

    assert shape_of_stream(stream(2)) == shape_of_stream(stream(9))
    assert shape_of_stream(stream(2)) != shape_of_stream(stream(2).replace("data: [DONE]\n\n", ""))
