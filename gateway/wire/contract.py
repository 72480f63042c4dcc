"""The prefill-leg contract: what happens to each field of a client's body on its way to the prefill pod.

Rule of this room: one table, API × field, and nothing about a field anywhere else. Whatever is not listed stays,
because it may shape the prompt, and both legs must see the same prompt. `docs/prefill-leg.md` is printed from
here (`make docs`) and every row is tested on the simulator and on a real vLLM.

Field semantics: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py`; why P must end as
"length": `distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py`, `request_finished`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from gateway.wire.fields import FALSE, TRUE, Fields, flag_of, integer_of, is_null, raw, value_of


class Api(enum.StrEnum):
    """The request dialects that take `kv_transfer_params` on both legs."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    MESSAGES = "messages"
    RESPONSES = "responses"


class Rule(enum.StrEnum):
    """What the prefill leg does with a field."""

    SET = "set"
    SET_IF_SENT = "set if sent"
    DROP = "drop"
    NEUTRALISE = "neutralise"


ALL = frozenset(Api)
CHAT_ONLY = frozenset({Api.CHAT})
COMPLETIONS_ONLY = frozenset({Api.COMPLETIONS})
MESSAGES_ONLY = frozenset({Api.MESSAGES})
RESPONSES_ONLY = frozenset({Api.RESPONSES})
BOTH = CHAT_ONLY | COMPLETIONS_ONLY
BUT_MESSAGES = ALL - MESSAGES_ONLY


@dataclass(frozen=True, slots=True)
class Row:
    """One field of the prefill leg. `value` is what SET and SET_IF_SENT write, as JSON."""

    field: str
    apis: frozenset[Api]
    rule: Rule
    why: str
    value: msgspec.Raw | None = None


ONE = raw(1)
AUTO = raw("auto")

PREFILL_LEG: tuple[Row, ...] = (
    Row("stream", ALL, Rule.SET, "P answers once; its one token is thrown away", FALSE),
    Row("max_tokens", BOTH | MESSAGES_ONLY, Rule.SET, "one step is enough to fill the KV cache", ONE),
    Row(
        "max_completion_tokens",
        CHAT_ONLY,
        Rule.SET_IF_SENT,
        "wins over max_tokens where both are there, so P would write the whole answer",
        ONE,
    ),
    Row("max_output_tokens", RESPONSES_ONLY, Rule.SET, "as max_tokens", ONE),
    Row("n", BOTH, Rule.SET_IF_SENT, "one prompt needs one set of blocks", ONE),
    Row("ignore_eos", BUT_MESSAGES, Rule.SET, "a first token that is EOS would end P as stopped", TRUE),
    Row("store", RESPONSES_ONLY, Rule.SET, "P would keep an answer in memory that nobody asks for", FALSE),
    Row("stream_options", BOTH, Rule.DROP, "a 400 without stream"),
    Row("min_tokens", BOTH, Rule.DROP, "a 400 when above max_tokens"),
    Row("stop", BUT_MESSAGES, Rule.DROP, "a first token that completes a stop string would end P as stopped"),
    Row("stop_token_ids", BUT_MESSAGES, Rule.DROP, "as stop"),
    Row("stop_sequences", MESSAGES_ONLY, Rule.DROP, "as stop"),
    Row("response_format", BOTH, Rule.DROP, "compiles a grammar for a token nobody reads"),
    Row("structured_outputs", BUT_MESSAGES, Rule.DROP, "as response_format"),
    Row("text", RESPONSES_ONLY, Rule.DROP, "as response_format"),
    Row("output_config", MESSAGES_ONLY, Rule.NEUTRALISE, "`format` as response_format; `effort` shapes the prompt"),
    Row("guided_json", BOTH, Rule.DROP, "as response_format (older vLLM)"),
    Row("guided_regex", BOTH, Rule.DROP, "as response_format (older vLLM)"),
    Row("guided_choice", BOTH, Rule.DROP, "as response_format (older vLLM)"),
    Row("guided_grammar", BOTH, Rule.DROP, "as response_format (older vLLM)"),
    Row("logprobs", BOTH, Rule.DROP, "costs a softmax over the vocabulary for a token nobody reads"),
    Row("top_logprobs", CHAT_ONLY | RESPONSES_ONLY, Rule.DROP, "a 400 without logprobs"),
    Row("include", RESPONSES_ONLY, Rule.DROP, "as logprobs"),
    Row("enable_response_messages", RESPONSES_ONLY, Rule.DROP, "sends the whole prompt back for nothing"),
    Row("logprob_token_ids", BOTH, Rule.DROP, "a 400 without logprobs"),
    Row("prompt_logprobs", BOTH, Rule.DROP, "defeats P's prefix cache; the request runs whole anyway"),
    Row("best_of", BOTH, Rule.DROP, "as n (older vLLM)"),
    Row("thinking_token_budget", BOTH, Rule.DROP, "forces tokens; P samples only one"),
    Row("repetition_detection", BOTH, Rule.DROP, "may end a request early"),
    Row("return_token_ids", BOTH, Rule.DROP, "the answer to P is not read for tokens"),
    Row("return_prompt_text", CHAT_ONLY, Rule.DROP, "sends the whole prompt back for nothing"),
    Row(
        "tool_choice",
        CHAT_ONLY | MESSAGES_ONLY | RESPONSES_ONLY,
        Rule.NEUTRALISE,
        'a forced choice compiles a grammar and breaks on a cut answer; "auto" renders the same tools, '
        'while leaving it out or "none" may hide them',
    ),
    Row("kv_transfer_params", ALL, Rule.SET, "asks P to keep the blocks for D; a client's own never leaves"),
)
"""Fields that are not listed stay as they came: messages, prompt, system, input, instructions, tools, thinking,
documents, images, chat_template, chat_template_kwargs, add_generation_prompt, continue_final_message,
add_special_tokens, reasoning_effort, truncate_prompt_tokens, cache_salt, model (LoRA names included) and everything
the gateway has never heard of."""

KEEPABLE = tuple(row.field for row in PREFILL_LEG if row.rule in (Rule.DROP, Rule.NEUTRALISE))
"""Fields an operator may leave alone on P; without the others there is no hand-over."""

ASK_P_TO_KEEP_BLOCKS = raw(
    {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
)
"""`kv_transfer_params` of the first leg (NIXL, vLLM `nixl/pull_scheduler.py`; `wire.handovers` has the others)."""


@dataclass(frozen=True, slots=True)
class WholeRow:
    """A kind of request that does not survive the hand-over and runs whole on one decode or replica pod.

    `seen` is what vLLM 0.32 was seen to do with it through P and D (tests/vllm), `risk` why it runs whole. `field`: the
    one without which it is none of that kind, where `name` is not that.
    """

    name: str
    apis: frozenset[Api]
    applies: Callable[[Fields], bool]
    risk: str
    seen: str
    field: str = ""


def _several(fields: Fields, name: str) -> bool:
    return (integer_of(fields, name) or 1) > 1


def _is_batch(fields: Fields) -> bool:
    value = fields.get("prompt")
    if value is None or not bytes(value).startswith(b"["):
        return False
    prompt = value_of(fields, "prompt")
    return isinstance(prompt, list) and any(isinstance(item, (str, list)) for item in prompt)


def _is_run_by_the_pod(fields: Fields) -> bool:
    tools = value_of(fields, "tools")
    return isinstance(tools, list) and any(
        isinstance(tool, dict) and tool.get("type") in _TOOLS_OF_THE_POD for tool in tools
    )


_TOOLS_OF_THE_POD = ("web_search_preview", "code_interpreter", "container", "mcp")
"""Types of Responses tools that a pod with a tool server calls itself (vLLM `responses/serving.py`)."""

WHOLE: tuple[WholeRow, ...] = (
    WholeRow(
        "n",
        BOTH,
        lambda f: _several(f, "n"),
        "one hand-over read by n sequences: blocks freed early or never",
        "200, right, blocks freed; with temperature 0 a 400 as anywhere, blocks freed",
    ),
    WholeRow("best_of", BOTH, lambda f: _several(f, "best_of"), "as n", "200, right: 0.32 does not know the field"),
    WholeRow(
        "use_beam_search",
        BOTH,
        lambda f: flag_of(f, "use_beam_search"),
        "each beam is a request of its own",
        "P hands nothing over; forced onto D: 200, right, but P's blocks stay pinned for the lease",
    ),
    WholeRow(
        "prompt_logprobs",
        BOTH,
        lambda f: not is_null(f.get("prompt_logprobs")),
        "D has no hidden states for a prompt it did not compute; some versions crash the engine",
        "200, right, blocks freed; D computes the whole prompt again",
    ),
    WholeRow(
        "echo with logprobs",
        COMPLETIONS_ONLY,
        lambda f: flag_of(f, "echo") and not is_null(f.get("logprobs")),
        "is prompt_logprobs under another name",
        "as prompt_logprobs",
        "echo",
    ),
    WholeRow(
        "echo",
        CHAT_ONLY,
        lambda f: flag_of(f, "echo"),
        "vLLM asks for prompt logprobs then, wanted or not",
        "as prompt_logprobs, and P never finds anything in its prefix cache",
    ),
    WholeRow(
        "batched prompt",
        COMPLETIONS_ONLY,
        _is_batch,
        "one answer carries one hand-over",
        "P hands over the first prompt only: D's engine dies where another one is longer, else 200 with wrong text; "
        "the other blocks stay pinned for the lease",
        "prompt",
    ),
    WholeRow(
        "prompt_embeds",
        COMPLETIONS_ONLY,
        lambda f: not is_null(f.get("prompt_embeds")),
        "has no tokens to hash",
        "200, right, blocks freed (with --enable-prompt-embeds, else a 400)",
    ),
    WholeRow(
        "max_tokens 0",
        COMPLETIONS_ONLY,
        lambda f: integer_of(f, "max_tokens") == 0,
        "scores a prompt, decodes nothing",
        "a 400 as anywhere, blocks freed; with echo 200, right",
        "max_tokens",
    ),
    WholeRow(
        "truncate_prompt_tokens -1",
        BOTH,
        lambda f: integer_of(f, "truncate_prompt_tokens") == -1,
        "the cut depends on max_tokens, which differs between the legs",
        "200, right: 0.32 cuts to max_model_len - 1 whatever max_tokens is",
        "truncate_prompt_tokens",
    ),
    WholeRow(
        "previous_response_id",
        RESPONSES_ONLY,
        lambda f: not is_null(f.get("previous_response_id")),
        "the history is in the memory of the pod that gave that answer",
        "P: a 404",
    ),
    WholeRow(
        "background",
        RESPONSES_ONLY,
        lambda f: flag_of(f, "background"),
        "is answered before it is worked on, and asked for later by its id",
        "not tried",
    ),
    WholeRow(
        "truncation auto",
        RESPONSES_ONLY,
        lambda f: value_of(f, "truncation") == "auto",
        "as truncate_prompt_tokens -1",
        "not tried",
        "truncation",
    ),
    WholeRow(
        "tools run by the pod",
        RESPONSES_ONLY,
        _is_run_by_the_pod,
        "several turns in one request, one hand-over",
        "not tried",
        "tools",
    ),
)


def whole_reason(api: Api, fields: Fields) -> str | None:
    """Why this request must run whole on one pod, or None when it may be handed over."""
    telling, rows = _whole_rows(api)
    if telling.isdisjoint(fields):
        return None
    return next((row.name for row in rows if row.applies(fields)), None)


@lru_cache
def _whole_rows(api: Api) -> tuple[frozenset[str], tuple[WholeRow, ...]]:
    rows = tuple(row for row in WHOLE if api in row.apis)
    return frozenset(row.field or row.name for row in rows), rows


def prefill_fields(
    api: Api, fields: Fields, keep: Collection[str] = (), ask: msgspec.Raw = ASK_P_TO_KEEP_BLOCKS
) -> Fields:
    """The first leg's fields, in the client's order, derived by the table.

    keep: fields the operator wants left alone on P, for models whose chat template shows them to the model
    (`response_format` and `tool_choice` in Kimi K3, vLLM `renderers/kimi_k3.py`). ask: its `kv_transfer_params`.
    """
    plan = _leg_plan(api, tuple(keep))
    leg = {**fields, **plan.set, "kv_transfer_params": ask}
    if plan.if_sent.isdisjoint(fields):
        return leg
    for name in plan.drop.intersection(fields):
        del leg[name]
    for name, value in plan.set_if_sent:
        if name in leg:
            leg[name] = value
    for name in plan.neutralise:
        if name in leg:
            _NEUTRALISE[name](api, leg)
    return leg


@dataclass(frozen=True, slots=True)
class _LegPlan:
    """The table's rows for one API, sorted by what they do. if_sent: all fields but those that are set anyway."""

    drop: frozenset[str]
    set: dict[str, msgspec.Raw]
    set_if_sent: tuple[tuple[str, msgspec.Raw], ...]
    neutralise: tuple[str, ...]
    if_sent: frozenset[str]


@lru_cache
def _leg_plan(api: Api, keep: tuple[str, ...]) -> _LegPlan:
    rows = [row for row in PREFILL_LEG if api in row.apis and row.field not in keep]
    values = {row.field: row.value for row in rows if row.value is not None}
    return _LegPlan(
        drop=frozenset(row.field for row in rows if row.rule is Rule.DROP),
        set={row.field: values[row.field] for row in rows if row.rule is Rule.SET and row.field in values},
        set_if_sent=tuple((row.field, values[row.field]) for row in rows if row.rule is Rule.SET_IF_SENT),
        neutralise=tuple(row.field for row in rows if row.rule is Rule.NEUTRALISE),
        if_sent=frozenset(row.field for row in rows if row.rule is not Rule.SET),
    )


def _neutralise_tool_choice(api: Api, leg: Fields) -> None:
    choice = value_of(leg, "tool_choice")
    if api is not Api.MESSAGES:
        if choice == "required" or isinstance(choice, dict):
            leg["tool_choice"] = AUTO
    elif isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        leg["tool_choice"] = raw({"type": "auto"})


def _without_format(_: Api, leg: Fields) -> None:
    config = value_of(leg, "output_config")
    if isinstance(config, dict):
        leg["output_config"] = raw({name: value for name, value in config.items() if name != "format"})


_NEUTRALISE: dict[str, Callable[[Api, Fields], None]] = {
    "tool_choice": _neutralise_tool_choice,
    "output_config": _without_format,
}


def render() -> str:
    """The table as Markdown."""
    lines = [
        "# The prefill leg",
        "",
        "Printed from `gateway/wire/contract.py` by `make docs`; do not edit.",
        "",
        "The gateway derives the request to the prefill pod (P) from the client's body by this table. Fields that "
        "are not listed go to both pods byte for byte as they came, because both must see the same prompt. The "
        "decode pod (D) gets the client's body with P's `kv_transfer_params` and, in a stream, "
        "`stream_options.include_usage`.",
        "",
        "| field | API | on P | why |",
        "|---|---|---|---|",
    ]
    for row in PREFILL_LEG:
        lines.append(f"| `{row.field}` | {_apis(row.apis)} | {_action(row)} | {row.why} |")
    lines += [
        "",
        "`prefill_keep_fields` in the configuration leaves fields alone for models whose chat template shows them "
        "to the model (Kimi K3 shows `response_format` and `tool_choice`). When P and D count different prompt "
        "tokens for one request, the fault `prompt_mismatch` is counted and logged.",
        "",
        "## Requests that run whole on one decode or replica pod",
        "",
        "| request | API | why | through P and D on vLLM 0.32 |",
        "|---|---|---|---|",
    ]
    lines += [f"| {row.name} | {_apis(row.apis)} | {row.risk} | {row.seen} |" for row in WHOLE]
    return "\n".join(lines) + "\n"


def _apis(apis: frozenset[Api]) -> str:
    return ", ".join(sorted(apis))


def _action(row: Row) -> str:
    if row.rule is Rule.NEUTRALISE:
        return '`"auto"` when forced' if row.field == "tool_choice" else "without `format`"
    value: Any = "the hand-over request" if row.field == "kv_transfer_params" else None
    if value is None and row.value is not None:
        value = f"`{bytes(row.value).decode()}`"
    return row.rule.value if value is None else f"{row.rule.value}: {value}"
