"""Before the run: is there a server, does it want a key, does it serve the model, can it stream?

Rule of this room: a few tiny requests, and for whatever is wrong one line that says what to do. A server's own words
are shown here only, on the operator's terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from gateway.ops.profile.words import CANDIDATES
from loadtest.live import answer
from loadtest.live.client import Client, Plain
from loadtest.live.endpoint import PATHS
from loadtest.live.errors import LoadtestError
from loadtest.live.talks import Dialogue, Talk, Turn

_LONG_WORDS = 200
_WORDS_SHOWN = 200


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class Found:
    """models: chosen, with their limits in tokens where known. tokens_per_word: None when the server does not count."""

    models: dict[str, int | None]
    tokens_per_word: float | None


async def models_of(client: Client) -> dict[str, int | None]:
    """Name to limit in tokens. Raises LoadtestError when nobody answers or the key is refused."""
    url = client.endpoint.url
    listed = await client.ask_plain("GET", "/v1/models")
    if listed.fault is not None:
        raise LoadtestError(f"{url}: {listed.detail or answer.FAULTS.get(listed.fault, listed.fault)}")
    _refuse(url, listed)
    if listed.status != 200:
        return {}
    try:
        return {model.id: model.max_model_len for model in msgspec.json.decode(listed.body, type=_Models).data}
    except msgspec.DecodeError:
        return {}


def pick(url: str, served: dict[str, int | None], wanted: Sequence[str]) -> list[str]:
    """The wanted models, or the only one. Raises LoadtestError."""
    if not wanted:
        if len(served) == 1:
            return list(served)
        names = f"there are {', '.join(sorted(served))}" if served else f"{url} does not say which it serves"
        raise LoadtestError(f"--model: say which; {names}")
    for name in wanted:
        if served and name not in served:
            raise LoadtestError(f"{url}: does not serve the model {name!r}; it serves {', '.join(sorted(served))}")
    return list(wanted)


async def try_out(client: Client, api: str, model: str, fields: dict[str, Any]) -> float | None:
    """Two answers of one token; gives the tokens per word. Raises LoadtestError."""
    counts = [await _tokens(client, api, model, fields, words) for words in (1, 1 + _LONG_WORDS)]
    short, long = counts
    return None if short is None or long is None or long <= short else (long - short) / _LONG_WORDS


async def _tokens(client: Client, api: str, model: str, fields: dict[str, Any], words: int) -> int | None:
    url = client.endpoint.url
    text = " ".join(CANDIDATES[number % len(CANDIDATES)] for number in range(words))
    body = Dialogue(api, model, Talk("", ()), "", fields).say(Turn(text, 1))
    came = await client.ask(body, "preflight", words, keep_text=False)
    if came.fault is None:
        return came.prompt_tokens
    if came.fault.startswith("http_"):
        _refuse(url, again := await client.ask_plain("POST", PATHS[api], body))
        raise LoadtestError(f"{url}: {came.status} to a tiny request{_said(again)}")
    raise LoadtestError(f"{url}: {came.detail or answer.FAULTS.get(came.fault, came.fault)}, for a tiny request")


def _refuse(url: str, came: Plain) -> None:
    if came.status in (401, 403):
        raise LoadtestError(f"{url}: {came.status}: it wants a key that it knows (--api-key-file, --api-key-env)")
    if 300 <= came.status < 400:
        to = f" to {came.location}" if came.location else ""
        raise LoadtestError(f"{url}: {came.status}, sends elsewhere{to}; redirects are not followed, give that URL")


def _said(came: Plain) -> str:
    try:
        said = orjson.loads(came.body)
        error = said.get("error", said)
        message = error.get("message", "") if isinstance(error, dict) else ""
    except (orjson.JSONDecodeError, AttributeError):
        return ""
    words = " ".join(str(message).split())
    shown = "".join(letter for letter in words if letter.isprintable())[:_WORDS_SHOWN]
    return f": {shown}" if shown else ""


async def look_at(clients: Sequence[Client], api: str, wanted: Sequence[str], fields: dict[str, Any]) -> Found:
    """All endpoints must serve all models. The tokenizer is asked at the first. Raises LoadtestError."""
    chosen: list[str] = list(wanted)
    limits: dict[str, int | None] = {}
    per_word: float | None = None
    for client in clients:
        served = await models_of(client)
        chosen = pick(client.endpoint.url, served, chosen)
        for model in chosen:
            seen = await try_out(client, api, model, fields)
            per_word = seen if per_word is None else per_word
            known = [limit for limit in (served.get(model), limits.get(model)) if limit is not None]
            limits[model] = min(known, default=None)
    return Found(limits, per_word)
