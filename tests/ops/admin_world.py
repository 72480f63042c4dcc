"""A gateway over simulated pods with its admin API, and a client of that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.net.world import World, world


class Admin:
    """Calls the admin API of a world; every answer is JSON."""

    def __init__(self, w: World, token: str | None = None) -> None:
        self.w = w
        self.url = w.running.administration.url or ""
        self.token = token

    async def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        given = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            given["Content-Type"] = "application/json"
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        given |= headers or {}
        async with self.w.session.request(method, self.url + path, data=data, headers=given) as answer:
            text = await answer.read()
            assert answer.content_type == "application/json", text
            return answer.status, msgspec.json.decode(text)

    async def get(self, path: str, **headers: str) -> Any:
        status, found = await self.call("GET", path, headers=headers)
        assert status == 200, found
        return found


@asynccontextmanager
async def admin(**options: Any) -> AsyncIterator[Admin]:
    """`options` are those of `world`; the token file is read for the client too."""
    async with world(**{"policy": "local", "admin.port": 0, **options}) as w:
        file = options.get("admin.token_file")
        token = None
        if file is not None:
            with open(file, encoding="utf-8") as opened:  # noqa: PTH123, ASYNC230
                token = opened.read().strip()
        yield Admin(w, token)
