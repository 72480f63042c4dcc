"""When not to ask.

Rule of this room: after some failures in a row nobody asks for a while; then one may try.
"""

from __future__ import annotations

from collections.abc import Callable

FAILURES = 3
OPEN_S = 1.0


class Breaker:
    """Closed at first. `allows` before each question, then `succeeded` or `failed`.

    report: told False and why when it opens, True when it closes again.
    """

    def __init__(self, report: Callable[[bool, str], None] = lambda closed, why: None) -> None:
        self._report = report
        self._failures = 0
        self._open = False
        self._try_at = 0.0

    @property
    def open(self) -> bool:
        """True while questions are held back."""
        return self._open

    def allows(self, now_s: float) -> bool:
        """Whether to ask now. While open, one question per OPEN_S is let through."""
        if not self._open:
            return True
        if now_s < self._try_at:
            return False
        self._try_at = now_s + OPEN_S
        return True

    def succeeded(self) -> None:
        """The question was answered."""
        self._failures = 0
        if self._open:
            self._open = False
            self._report(True, "it answers again")

    def failed(self, now_s: float, why: str) -> None:
        """The question was not answered."""
        self._failures += 1
        if self._open or self._failures < FAILURES:
            return
        self._open = True
        self._try_at = now_s + OPEN_S
        self._report(False, why)
