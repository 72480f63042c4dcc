"""The files of the live page as the admin server gives them, and who gets to see what is behind them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway.ops.admin.routes import ROUTES
from gateway.ops.ui import HERE, TYPES
from tests.ops.admin_world import Admin, admin

TOKEN = "the-token-of-this-test"
FILES = sorted(file for file in HERE.iterdir() if file.suffix in TYPES)
SCRIPTS = [file for file in FILES if file.suffix == ".js"]
each_script = pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: str(file.name))


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    return str(file)


async def access(a: Admin, **headers: str) -> tuple[bool, bool]:
    """(view, change) of whoever sends these headers."""
    found = await a.get("/ui/access", **headers)
    return found["view"], found["change"]


async def test_every_file_is_served_without_the_token_and_under_a_strict_policy(token_file: str) -> None:
    async with admin(**{"admin.token_file": token_file}) as a:
        for file in FILES:
            path = "/ui" if file.name == "page.html" else f"/ui/{file.name}"
            async with a.w.session.get(a.url + path) as answer:
                assert answer.status == 200
                assert await answer.read() == file.read_bytes()
                assert answer.headers["Content-Type"] == TYPES[file.suffix]
                policy = answer.headers["Content-Security-Policy"]
                parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
                assert parts["default-src"] == "'none'"
                assert {parts[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
                assert {parts[name] for name in ("base-uri", "frame-ancestors", "form-action")} == {"'none'"}
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_where_there_is_no_admin_api_there_is_no_page() -> None:
    async with admin(**{"admin.port": None}) as a:
        assert (await a.w.get("/ui")).status == 404


@each_script
def test_no_script_makes_elements_of_text(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|cookie"
    assert re.findall(banned, source) == []
    assert len(source.splitlines()) <= 400


@each_script
def test_scripts_import_what_is_there(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    for names, module in re.findall(r"^import \{([^}]*)\} from \"\./(.*)\";", source, re.MULTILINE):
        exported = (HERE / module).read_text(encoding="utf-8")
        for name in (each.strip() for each in names.split(",")):
            whole = rf"(?<![\w.$]){re.escape(name)}(?![\w$])"
            assert re.search(rf"^export (async )?(function|const|class) {whole}", exported, re.MULTILINE)
            assert len(re.findall(whole, source)) > 1, f"{name} is not used"


def test_the_page_refers_to_its_own_files_only_and_has_nothing_inline() -> None:
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            for name, value in attrs:
                assert not name.startswith("on"), f"{tag} {name}"
                assert name != "style", tag
                if name in ("src", "href") and value is not None:
                    found.append(value)
            assert tag != "style"

        def handle_data(self, data: str) -> None:
            assert self.lasttag != "script" or not data.strip()

    page = (HERE / "page.html").read_text(encoding="utf-8")
    Reader().feed(page)
    outside = [each for each in found if not each.startswith(("#", "data:")) and not (HERE.parent / each).is_file()]
    assert outside == []
    assert re.findall(r"url\(|@import", (HERE / "page.css").read_text(encoding="utf-8")) == []


# Who may look, and who may change


async def test_without_a_token_whoever_is_on_this_machine_may_do_everything() -> None:
    async with admin() as a:
        assert await access(a) == (True, True)
        assert (await a.call("GET", "/ui/access", headers={"Host": "evil.example"}))[0] == 403


async def test_with_a_token_nothing_may_be_seen_without_it(token_file: str) -> None:
    async with admin(**{"admin.token_file": token_file}) as a:
        assert await access(a, Authorization=f"Bearer {TOKEN}") == (True, True)
        assert await access(a, Authorization="Bearer wrong") == (False, False)
        a.token = None
        assert await access(a) == (False, False)


async def test_where_it_is_allowed_everything_is_shown_and_nothing_changed_without_the_token(token_file: str) -> None:
    async with admin(policy="ppd", **{"admin.token_file": token_file, "admin.view_without_token": True}) as a:
        wrong = {"Authorization": "Bearer wrong"}
        assert await access(a, **wrong) == (False, False)
        assert (await a.call("GET", "/api/v1/health", headers=wrong))[0] == 401, "a wrong token is no missing one"
        a.token = None
        assert await access(a) == (True, False)
        for route in ROUTES:
            if route.method == "GET" and "{" not in route.path:
                assert (await a.call("GET", route.path))[0] == 200
            elif route.method != "GET":
                assert (await a.call(route.method, route.path, b"{}"))[0] == 401
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert (await a.call("GET", "/api/v1/health", headers=headers))[0] == 403
        a.token = TOKEN
        assert (await a.call("PUT", "/api/v1/weights", {"w_ttft": 2, "w_tpot": 1}))[0] == 200
