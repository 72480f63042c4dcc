"""Turns of one conversation on idle pods: the paper's turn-scaling run, a prediction of the fitted profile.

Rule of this room: one conversation at a time, so nothing waits for anything.
"""

from __future__ import annotations

from loadtest.fit.paper import Numbers
from loadtest.fit.published import TURN_TOKENS
from loadtest.fit.world import Prompt, Turn, World

TURNS = 16


def idle_ttfts_s(numbers: Numbers, *, local: bool, turns: int = TURNS) -> list[float]:
    """TTFT of each turn in seconds; of every answer the head that stays the same tokens is still cached on D."""
    world = World(numbers.profile, ("p", "d"))
    kept = min(TURN_TOKENS, round(numbers.client.answer_kept_tokens))
    took: list[Turn] = []

    def begin(number: int, prompt: Prompt) -> None:
        prefill = None if local and number > 0 else "p"
        took.append(world.turn(prefill, "d", prompt, TURN_TOKENS, 3 * number + 1, lambda: end(number, prompt)))

    def end(number: int, prompt: Prompt) -> None:
        if number + 1 < turns:
            more: Prompt = ((3 * number + 1, kept), (3 * number + 2, TURN_TOKENS - kept + TURN_TOKENS))
            begin(number + 1, tuple(piece for piece in (*prompt, *more) if piece[1]))

    world.call_at(0.0, lambda: begin(0, ((0, TURN_TOKENS),)))
    world.run()
    return [turn.ttft_s for turn in took]
