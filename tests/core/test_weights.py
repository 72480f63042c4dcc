"""Weights are checked when they come in."""

from __future__ import annotations

import math

import pytest

from gateway.core.weights import BALANCED, PRESETS, Weights, parse_weights


def test_a_preset_and_an_expression_say_the_same() -> None:
    assert parse_weights("interactive") == parse_weights("ttft=2,tpot=1") == Weights(2.0, 1.0)
    assert parse_weights(" Balanced ") == BALANCED == PRESETS["balanced"]


def test_what_is_left_out_is_one() -> None:
    assert parse_weights("tpot=3") == Weights(1.0, 3.0)
    assert parse_weights("ttft=0") == Weights(0.0, 1.0)


@pytest.mark.parametrize("text", ["", "fast", "ttft", "ttft=", "ttft=x", "speed=1", "ttft=1;tpot=2", "ttft=1,,"])
def test_what_is_no_weight_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="weight"):
        parse_weights(text)


@pytest.mark.parametrize(("w_ttft", "w_tpot"), [(-1.0, 1.0), (1.0, -0.5), (math.nan, 1.0), (1.0, math.inf), (0.0, 0.0)])
def test_weights_that_mean_nothing_are_refused(w_ttft: float, w_tpot: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Weights(w_ttft, w_tpot)
    with pytest.raises(ValueError, match="weight"):
        parse_weights(f"ttft={w_ttft},tpot={w_tpot}")
