"""The table set in use: open it, check it, exchange it while the gateway runs.

Rule of this room: a set that is not wholly good is never used; what was in use stays. Reading happens off the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from gateway.core.policies import MeasuredTable
from gateway.net.records import IdleObserver
from gateway.ops.logs import MAIN
from gateway.ops.watch import UNSEEN, Watcher
from lut.table import TableError, TableSet


def open_checked(directory: Path) -> TableSet:
    """Open a set and check every byte of it. Raises TableError."""
    tables = TableSet.open(directory)
    tables.verify()
    return tables


class TableKeeper(Watcher):
    """Keeps a policy's tables fresh."""

    def __init__(self, policy: MeasuredTable, directory: Path, on_change: Callable[[TableSet, bool], None]) -> None:
        super().__init__()
        self._policy = policy
        self._directory = directory
        self._on_change = on_change
        self._seen: object = _stamp(directory)

    def introduce(self) -> None:
        """Say at start-up which table decides."""
        tables = self._policy.tables
        MAIN.info("table set in use: %s", tables.describe())
        if tables.manifest.simulated:
            MAIN.warning("the table set was measured on SIMULATED pods; measure your own with `ppd-gateway profile`")

    def reload(self) -> None:
        """Look now, whether the directory seems changed or not."""
        self._seen = UNSEEN
        super().reload()

    async def take(self) -> None:
        """Read the directory and use what is there. Raises TableError, and what was in use stays."""
        stamp = await asyncio.to_thread(_stamp, self._directory)
        await self._exchange()
        self._seen = stamp

    async def _look(self) -> None:
        stamp = await asyncio.to_thread(_stamp, self._directory)
        if stamp == self._seen:
            return
        self._seen = stamp
        with contextlib.suppress(TableError):
            await self._exchange()

    async def _exchange(self) -> None:
        """Raises TableError once it is logged."""
        try:
            tables = await asyncio.to_thread(open_checked, self._directory)
        except TableError as error:
            MAIN.error("new table set refused, the old one stays in use: %s", error)
            self._on_change(self._policy.tables, False)
            raise
        self._policy.take(tables)
        MAIN.info("table set exchanged: %s", tables.describe())
        self._on_change(tables, True)


def _stamp(directory: Path) -> tuple[int, int] | None:
    """What changes when a set is put in place by rename: the manifest's inode and time."""
    try:
        status = (directory / "manifest.json").stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class ModelCheck(IdleObserver):
    """An observer that says so when the pods serve another model than the table was measured on.

    Only a warning: served names are aliases that operators choose, and every route gives the right answer.
    """

    def __init__(self, policy: MeasuredTable, models_of: Callable[[], set[str]]) -> None:
        self._policy = policy
        self._models_of = models_of
        self._said: tuple[str, frozenset[str]] | None = None

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        measured, served = self._policy.tables.manifest.model, frozenset(self._models_of())
        if not served or measured in served or self._said == (measured, served):
            return
        self._said = (measured, served)
        MAIN.warning("the table set was measured on model %s, the pods serve %s", measured, ", ".join(sorted(served)))
