"""`ppd-gateway canary status|set N|off|on`: a word to a running gateway, through its admin API.

Rule of this room: standard library only; the token is read from a file and shown nowhere.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from gateway.core.keys import checked_key
from gateway.ops.checks import between, url
from gateway.ops.layers import ConfigError
from gateway.ops.watch import reason_of

DEFAULT = "http://127.0.0.1:9901"
_LIMIT_S = 10.0


def add_command(commands: Any) -> None:
    """Mount the command on an argparse sub-parser group."""
    canary = commands.add_parser("canary", help="look at the canary of a running gateway, or change it")
    words = canary.add_subparsers(required=True, metavar="COMMAND")
    for name, words_of_help in (
        ("status", "how it is, and what its guard found"),
        ("set", "another percentage of the conversations, and on"),
        ("off", "everything goes as policy pd would have it"),
        ("on", "on with the percentage that it had"),
    ):
        one = words.add_parser(name, help=words_of_help)
        if name == "set":
            one.add_argument("percent", metavar="PERCENT")
        one.add_argument("--admin", default=DEFAULT, metavar="URL", help=f"the admin API (default {DEFAULT})")
        one.add_argument("--token-file", type=Path, metavar="FILE", help="file with the token of the admin API")
        one.set_defaults(run=_run, word=name)


def _run(options: argparse.Namespace) -> int:
    body = None
    if options.word == "set":
        try:
            body = {"percent": between(0, 100)(options.percent)}
        except ValueError as error:
            raise ConfigError(f"canary set: a percentage {error}") from None
    elif options.word != "status":
        body = {"state": options.word}
    print(_shown(_ask(options, body)))
    return 0


def _ask(options: argparse.Namespace, body: dict[str, Any] | None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    try:
        address = url(options.admin)
        if options.token_file is not None:
            headers["Authorization"] = f"Bearer {checked_key(options.token_file.read_text(encoding='latin-1').strip())}"
    except ValueError as error:
        raise ConfigError(f"canary: {error}") from None
    except OSError as error:
        raise ConfigError(f"{options.token_file}: {reason_of(error)}") from None
    request = urllib.request.Request(
        f"{address}/api/v1/canary",
        data=None if body is None else json.dumps(body).encode(),
        headers=headers,
        method="GET" if body is None else "PUT",
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_LIMIT_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise ConfigError(f"{address}: {_reason(error)}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else type(error).__name__
        raise ConfigError(f"{address}: no admin API answers there: {why}") from None
    return found


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"status {error.code}"


def _shown(found: dict[str, Any]) -> str:
    lines = [f"canary {found['state']}, {found['percent']:g} % of the conversations: {found['why']}"]
    if found["since_s"]:
        lines[0] += f" ({time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found['since_s']))})"
    if found["shadow"]:
        routes = ", ".join(f"{count} {route}" for route, count in sorted(found["shadowed"].items()))
        lines.append(f"in shadow: would have gone {routes}" if routes else "in shadow: nothing decided yet")
    if found["passthrough"]:
        lines.append(f"the others go to {found['passthrough']}")
    if not found["guard"]:
        lines.append("its guard is off")
    for test in found["tests"]:
        lines.append(
            f"guard: {test['name']}: {test['canary']} of the canary, {test['baseline']} of the baseline; "
            f"{test['seen']} {'failed' if test['name'] == 'failures' else 'slow'}, {test['expected']:g} "
            f"{'of the baseline' if test['name'] == 'failures' else 'expected'}; p {test['p']:.2g} "
            f"(alarm at {test['alpha']:.2g})"
        )
    return "\n".join(lines)
