"""The grids that have a name.

Rule of this room: numbers only. `paper` is the grid of arXiv 2603.13358: turn 1 is 128→128 or 1024→1024, so half of the
context is the answer, and its rate counts conversations of two turns each, so twice as many turns per second.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.ops.profile.plan import REPLY_TOKENS, Shape, grid

PAPER_TURN_2 = (
    (16, 32),
    (32, 256),
    (32, 512),
    (64, 1024),
    (64, 64),
    (128, 128),
    (256, 64),
    (512, 64),
    (1024, 32),
)
"""(new, output) tokens."""
PAPER_CONTEXTS = (256, 2048)
PAPER_CONVERSATIONS_PER_S = (0.5, 1, 2, 4, 6, 8, 10, 12, 16, 20)
TURNS_PER_CONVERSATION = 2


@dataclass(frozen=True, slots=True)
class Preset:
    """Axes of a grid, or its shapes when it is not all combinations; how much is measured in each cell."""

    contexts: tuple[int, ...]
    news: tuple[int, ...]
    outputs: tuple[int, ...]
    rates: tuple[float, ...]
    samples: int
    window_s: float
    repeats: int
    explicit: tuple[Shape, ...] = ()

    def shapes(self) -> tuple[Shape, ...]:
        return self.explicit or grid(self.contexts, self.news, self.outputs, REPLY_TOKENS)


PRESETS = {
    "quick": Preset((512, 4096), (32, 512), (64,), (1.0, 4.0), samples=10, window_s=3.0, repeats=3),
    "paper": Preset(
        PAPER_CONTEXTS,
        tuple(sorted({new for new, _ in PAPER_TURN_2})),
        tuple(sorted({output for _, output in PAPER_TURN_2})),
        tuple(float(TURNS_PER_CONVERSATION * rate) for rate in PAPER_CONVERSATIONS_PER_S),
        samples=30,
        window_s=10.0,
        repeats=3,
        explicit=tuple(
            Shape(context, new, output, context // 2) for context in PAPER_CONTEXTS for new, output in PAPER_TURN_2
        ),
    ),
    "full": Preset(
        (128, 512, 2048, 8192, 32_768, 131_072),
        (16, 128, 1024, 4096),
        (16, 64, 256, 1024),
        (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        samples=24,
        window_s=4.0,
        repeats=3,
    ),
}
