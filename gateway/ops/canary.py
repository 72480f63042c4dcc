"""The canary as an operator has it: its state over a restart, its guard at work, and a word to the log.

Rule of this room: every change goes through `CanaryKeeper`, which writes it down before it tells anybody. What was said
at run time holds until somebody says otherwise; only another percentage in the configuration is such a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.core.canary import Canary, CanaryState, CanaryStatus
from gateway.core.guard import Findings, Guard, Sample
from gateway.net.records import Arm, IdleObserver, Outcome, RequestRecord
from gateway.ops.control import CanarySettings
from gateway.ops.logs import MAIN

_FAILED = (Outcome.FAILED, Outcome.BROKEN)
_COUNTS = (*_FAILED, Outcome.OK)


class Kept(msgspec.Struct, frozen=True):
    """The state file. configured: the percentage that the configuration had then."""

    state: CanaryState
    percent: float
    why: str
    since_s: float
    configured: float


class CanaryKeeper(IdleObserver):
    """Feeds the guard, lets it look, and keeps the state. `start` first, `stop` in the end.

    tell: called with the new status after a change made here, for the other workers.
    """

    def __init__(self, canary: Canary, settings: CanarySettings, workers: int = 1) -> None:
        self.canary = canary
        self.settings = settings
        self.guard = Guard(settings.guard, workers)
        self._workers = workers
        self.tell: Callable[[CanaryStatus], None] = lambda status: None
        self._task: asyncio.Task[None] | None = None
        self._restore()

    def start(self) -> None:
        """Let the guard look from now on."""
        self._task = asyncio.ensure_future(self._watch())

    async def stop(self) -> None:
        """No more looks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def finished(self, record: RequestRecord) -> None:
        """One sample, where there is something to compare; a client's own errors and leave-takings are none."""
        if not (self.canary.compares and self.settings.guard.enabled):
            return
        if record.conversation is None or record.outcome not in _COUNTS:
            return
        sample = Sample(
            canary=record.arm == Arm.CANARY,
            conversation=record.conversation,
            turn=record.turn or 1,
            prompt_tokens=record.estimated_tokens or 0,
            failed=record.outcome in _FAILED,
            ttft_s=record.ttft_s if record.stream else None,
            tpot_s=record.tpot_s,
        )
        self.guard.add(sample, time.monotonic())

    async def look(self) -> Findings | None:
        """One look of the guard, in pieces; stops the canary where it must. None when there is nothing to compare."""
        if not self.canary.compares:
            return None
        await asyncio.to_thread(importlib.import_module, "gateway.core.evidence")  # NumPy: 0.1 s, the first time
        for _ in self.guard.steps(time.monotonic()):
            await asyncio.sleep(0)
        found = self.guard.findings
        if found is not None and found.verdict is not None and self.canary.compares:
            self.canary.stop(found.verdict, time.time())
            self._changed()
            self.guard.findings = found
        return found

    def set_percent(self, percent: float) -> None:
        """Raises ValueError."""
        self.canary.set_percent(percent, "set by an operator", time.time())
        self._changed()

    def turn(self, on: bool) -> None:
        """On with the percentage that it had, or off."""
        word = "on" if on else "off"
        state = CanaryState.ON if on else CanaryState.OFF
        self.canary.turn(state, f"turned {word} by an operator", time.time())
        self._changed()

    def heard(self, status: CanaryStatus) -> None:
        """Another worker changed it."""
        known = self.canary.status
        if (status.state, status.percent, status.why) != (known.state, known.percent, known.why):
            self.canary.restore(status)
            self.guard.clear()
            self._say()

    def reconfigure(self, settings: CanarySettings) -> None:
        """The configuration was read again: another percentage in it counts, what is off stays off."""
        before, self.settings = self.settings, settings
        if settings.guard != before.guard:
            self.guard = Guard(settings.guard, self._workers)
        if settings.percent != before.percent:
            self.canary.configure(settings.percent, time.time())
            self._changed()

    def _changed(self) -> None:
        self.guard.clear()
        self._save()
        self._say()
        self.tell(self.canary.status)

    def _say(self) -> None:
        status = self.canary.status
        say = MAIN.error if status.state is CanaryState.STOPPED else MAIN.info
        end = "; it stays off until `ppd-gateway canary on`" if status.state is CanaryState.STOPPED else ""
        say("canary %s (%g %%): %s%s", status.state, status.percent, status.why, end)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.guard.look_s)
            if self.settings.guard.enabled:
                await self.look()

    # ---- the file

    def _restore(self) -> None:
        path = self.settings.state_file
        if path is None:
            return
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=Kept)
            self.canary.restore(CanaryStatus(kept.state, kept.percent, kept.why, kept.since_s))
            if kept.configured != self.settings.percent:
                self.canary.configure(self.settings.percent, time.time())
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a state file of this version"
            self.canary.turn(CanaryState.OFF, f"{path} cannot be read", time.time())
            MAIN.error("canary.state_file: %s: %s; the canary stays off until `ppd-gateway canary on`", path, why)
            return
        if self.canary.status.state is not CanaryState.ON:
            self._say()

    def _save(self) -> None:
        path = self.settings.state_file
        if path is None:
            return
        status = self.canary.status
        kept = Kept(status.state, status.percent, status.why, status.since_s, self.settings.percent)
        try:
            write_whole(path, msgspec.json.encode(kept))
        except OSError as error:
            MAIN.error("canary.state_file: %s: %s; a restart will not know of this change", path, error.strerror)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a small file at once (temporary file, fsync, rename; mode 0600). Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
