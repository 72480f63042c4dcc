"""The canary's keeper, the reload and the admin API of one gateway process, put together.

Rule of this room: aiohttp is imported where the admin API is wanted and nowhere else; what everybody pays for is the
switch of the canary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.net.gateway import Gateway, MakePage
from gateway.net.parts import Parts
from gateway.net.roster import Roster
from gateway.net.server import HttpServer
from gateway.ops.canary import CanaryKeeper
from gateway.ops.config import Config
from gateway.ops.discovery.keeper import Discovery
from gateway.ops.logs import MAIN
from gateway.ops.observers import Observers
from gateway.ops.reload import Reloader
from gateway.ops.tables import TableKeeper
from gateway.ops.workers import WorkerSeat

if TYPE_CHECKING:
    from gateway.ops.admin.backend import Backend
    from gateway.ops.admin.server import AdminServer


class Administration:
    """What changes a running gateway. `start` first, `stop` in the end.

    again: reads the configuration anew (SIGHUP). pages: what the admin API serves besides its own, by path.
    """

    def __init__(
        self,
        config: Config,
        parts: Parts,
        canary: CanaryKeeper,
        *,
        gateway: Gateway,
        roster: Roster,
        discovery: Discovery,
        server: HttpServer,
        keeper: TableKeeper | None,
        seat: WorkerSeat | None,
        again: Callable[[], Config] | None,
        pages: Mapping[str, MakePage],
    ) -> None:
        self.canary = canary
        self.reloader = Reloader(config, again, parts, roster, discovery, server, canary)
        self.url: str | None = None
        self.backend: Backend | None = None
        self._server: AdminServer | None = None
        self._watched: list[Any] = []
        if config.admin is not None or seat is not None:
            self.backend = self._made_backend(config, gateway, roster, keeper, seat)
        if config.admin is not None and self.backend is not None:
            parts.observer = Observers(parts.observer, self.backend.control.decisions)
        if config.admin is not None and (seat is None or seat.number == 1):
            self._make_server(config, pages)

    async def start(self) -> None:
        """Raises OSError when the admin port is taken."""
        self.canary.start()
        if self.backend is not None:
            await self.backend.start()
        settings = self.reloader.config.admin
        if self._server is not None and settings is not None:
            self.url = await self._server.start(settings.host, settings.port)
            MAIN.info("admin API on %s", self.url)
        for files in self._watched:
            files.start()

    async def stop(self) -> None:
        for files in self._watched:
            await files.stop()
        if self._server is not None:
            await self._server.stop()
        if self.backend is not None:
            await self.backend.stop()
        await self.canary.stop()

    def reload(self) -> None:
        """SIGHUP."""
        for files in self._watched:
            files.reload()
        before = self.reloader.config
        self.reloader.reload()
        if self.backend is not None and before.net.weights != self.reloader.config.net.weights:
            self.backend.forget("weights")

    def _made_backend(
        self,
        config: Config,
        gateway: Gateway,
        roster: Roster,
        keeper: TableKeeper | None,
        seat: WorkerSeat | None,
    ) -> Backend:
        from gateway.ops.admin.backend import Backend
        from gateway.ops.admin.decisions import RecentDecisions
        from gateway.ops.admin.fan import Place
        from gateway.ops.admin.handlers import Control

        control = Control(
            config=lambda: self.reloader.config,
            gateway=gateway,
            roster=roster,
            keeper=keeper,
            canary=self.canary,
            decisions=RecentDecisions(),
            workers=config.workers,
        )
        return Backend(control, None if seat is None else Place(seat.number, seat.count, seat.folder))

    def _make_server(self, config: Config, pages: Mapping[str, MakePage]) -> None:
        from gateway.ops.admin.server import AdminServer
        from gateway.ops.admin.token import load_token
        from gateway.ops.ui import live_page

        assert config.admin is not None
        assert self.backend is not None
        token = load_token(config.admin)
        self._watched = token.watch()
        self._server = AdminServer(self.backend, token, {**pages, **live_page()}, view=config.admin.view)
