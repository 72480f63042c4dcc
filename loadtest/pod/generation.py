"""What a generate request asks for, read and judged.

Rule of this room: from a JSON body to one frozen `Generation`, or to the `ApiError` vLLM answers; in vLLM's order: the
body's shape, its combinations, the model, the prompt's length, the sampling values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.pod import fields, structured, template, tokenizer
from loadtest.pod.errors import bad_request, bad_value, not_found, wrong_field


@dataclass(frozen=True, slots=True)
class PodModel:
    """What a pod serves."""

    name: str
    max_model_len: int
    tool_parser: bool = True
    """`--enable-auto-tool-choice --tool-call-parser …`."""
    adapters: dict[str, str] = field(default_factory=dict)
    """LoRA adapters by name, with their paths."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One API request: prompts times `n` answers."""

    model: str
    prompts: tuple[tuple[int, ...], ...]
    prompt_texts: tuple[str | None, ...]
    n: int
    max_tokens: tuple[int, ...]
    """Per prompt, cut to what is left of the context."""
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    include_stop: bool
    skip_special: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: int | None
    """Number of alternatives, or None for no log probabilities at all."""
    echo: bool
    return_token_ids: bool
    forced: tuple[int, ...] | None
    tool_name: str | None
    """The one tool to call (named or required), with `forced` its arguments."""
    tool_choice: str
    cache_salt: str | None
    kv_transfer_params: dict[str, Any] | None
    request_id: str | None
    body: dict[str, Any]
    adapter: str | None = None
    """The LoRA adapter it runs on."""


def read_chat(body: Mapping[str, Any], model: PodModel) -> Generation:
    """`POST /v1/chat/completions`."""
    _check_combinations(body)
    tools = _check_tools(body)
    checked = fields.check(body, fields.CHAT, ("messages",))
    _check_model(checked, model)
    choice, name = _tool_choice(checked, tools, model)
    for index, message in enumerate(checked["messages"]):
        if not isinstance(message, dict):
            raise wrong_field(f"messages.{index}", "dict_type", "Input should be a valid dictionary", message)
        if "role" not in message:
            # The first of the eleven errors pydantic finds, one per kind of message.
            where = f"messages.{index}.ChatCompletionDeveloperMessageParam.role"
            raise wrong_field(where, "missing", "Field required", message)
    ids = _forwarded_ids(checked)
    text = None
    if ids is None:
        text = _render(checked, tools if choice != "none" else None)
        ids = tokenizer.encode(text)
    asked = checked.get("max_completion_tokens", checked.get("max_tokens"))
    logprobs = checked.get("top_logprobs", 0) if checked.get("logprobs") else None
    forced = None
    if name is not None:
        schema = next(t["function"].get("parameters") for t in tools if t["function"]["name"] == name)
        forced = structured.text_for_schema(schema or {})
    return _finish(checked, model, [ids], [text], asked, logprobs, forced, name, choice)


def _render(checked: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> str:
    if not checked["messages"]:
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return template.render(
        checked["messages"],
        tools=tools,
        add_generation_prompt=checked.get("add_generation_prompt", True),
        continue_final_message=checked.get("continue_final_message", False),
    )


def read_completion(body: Mapping[str, Any], model: PodModel) -> Generation:
    """`POST /v1/completions`."""
    _check_combinations(body)
    prompt = body.get("prompt") if isinstance(body, Mapping) else None
    if prompt is None or prompt == "":
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    checked = fields.check(body, fields.COMPLETION, ())
    _check_model(checked, model)
    prompts, texts = _prompts(prompt)
    return _finish(
        checked,
        model,
        prompts,
        texts,
        checked.get("max_tokens", 16),
        checked.get("logprobs"),
        None,
        None,
        "none",
    )


def _finish(
    checked: dict[str, Any],
    model: PodModel,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[str | None],
    asked: int | None,
    logprobs: int | None,
    forced: str | None,
    tool_name: str | None,
    tool_choice: str,
) -> Generation:
    limit = model.max_model_len
    if asked is not None and asked > limit:
        name = "max_completion_tokens" if "max_completion_tokens" in checked else "max_tokens"
        raise bad_value(
            f"{name}={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens.",
            name,
            asked,
        )
    for ids, text in zip(prompts, texts, strict=True):
        _check_length(ids, limit, is_text=text is not None, is_forwarded="messages" in checked and text is None)
    max_tokens = tuple(min(limit - len(ids), limit if asked is None else asked) for ids in prompts)
    _check_sampling(checked, max_tokens)
    if forced is None:
        forced = structured.text_for_format(checked.get("response_format"))
    options = checked.get("stream_options") or {}
    include_usage = bool(options.get("include_usage"))
    adapter = checked["model"] if checked.get("model") in model.adapters else None
    return Generation(
        model=model.name if adapter is None else adapter,
        adapter=adapter,
        prompts=tuple(tuple(ids) for ids in prompts),
        prompt_texts=tuple(texts),
        n=checked.get("n", 1),
        max_tokens=max_tokens,
        min_tokens=checked.get("min_tokens", 0),
        ignore_eos=checked.get("ignore_eos", False),
        stop=tuple(checked.get("stop", ())),
        stop_token_ids=frozenset(checked.get("stop_token_ids", ())),
        include_stop=checked.get("include_stop_str_in_output", False),
        skip_special=checked.get("skip_special_tokens", True),
        stream=checked.get("stream", False),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
        logprobs=logprobs,
        echo=checked.get("echo", False),
        return_token_ids=checked.get("return_token_ids", False),
        forced=tuple(tokenizer.encode(forced)) if forced is not None else None,
        tool_name=tool_name,
        tool_choice=tool_choice,
        cache_salt=checked.get("cache_salt"),
        kv_transfer_params=checked.get("kv_transfer_params"),
        request_id=checked.get("request_id"),
        body=checked,
    )


def _check_combinations(body: Mapping[str, Any]) -> None:
    """vLLM's validators that look at the raw body."""
    if not isinstance(body, Mapping):
        return
    if body.get("stream_options") and not body.get("stream"):
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise bad_value("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    chosen = body.get("response_format")
    if isinstance(chosen, Mapping) and chosen.get("type") == "json_schema" and not chosen.get("json_schema"):
        raise bad_value(
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
            "response_format",
        )
    kind = chosen.get("type") if isinstance(chosen, Mapping) else None
    if kind not in (None, "text", "json_object", "json_schema", "structural_tag"):
        expected = "Input should be 'text', 'json_object' or 'json_schema'"
        raise wrong_field("response_format.type", "literal_error", expected, kind)
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def _check_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools") if isinstance(body, Mapping) else None
    if tools == []:
        raise bad_value(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
            "tools",
        )
    choice = body.get("tool_choice") if isinstance(body, Mapping) else None
    if choice not in (None, "none") and not tools:
        raise bad_value("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, Mapping):
        name = (choice.get("function") or {}).get("name")
        if name not in [tool.get("function", {}).get("name") for tool in tools or ()]:
            raise bad_value(
                "The tool specified in `tool_choice` does not match any of the specified `tools`",
                "tool_choice",
            )
    elif isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise bad_value(
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.',
            "tool_choice",
        )
    return list(tools or ())


def _tool_choice(checked: dict[str, Any], tools: list[dict[str, Any]], model: PodModel) -> tuple[str, str | None]:
    """(none|auto|required|named, name of the tool that must be called)."""
    choice = checked.get("tool_choice", "auto" if tools else "none")
    if choice == "none":
        return "none", None
    named = isinstance(choice, Mapping)
    if not model.tool_parser:
        if choice == "auto":
            raise bad_request('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        described = f'function "{choice["function"]["name"]}"' if named else f'"{choice}"'
        raise bad_request(f"tool_choice={described} requires --tool-call-parser to be set")
    if named:
        return "named", choice["function"]["name"]
    return choice, tools[0]["function"]["name"] if choice == "required" else None


def _check_model(checked: Mapping[str, Any], model: PodModel) -> None:
    name = checked.get("model")
    if name and name != model.name and name not in model.adapters:
        raise not_found(name, model.name)


def _forwarded_ids(checked: dict[str, Any]) -> list[int] | None:
    """`kv_transfer_params.prompt_token_ids`: prompt ids from the prefill leg, used instead of the messages.

    Chat only; `/v1/completions` does not look at them (vllm/renderers/online_renderer.py, `_reused_prompt_token_ids`).
    Unread where `echo` is set or a message is more than text.
    """
    params = checked.get("kv_transfer_params")
    if not params or params.get("prompt_token_ids") is None:
        return None
    params = dict(params)
    ids = params.pop("prompt_token_ids")
    checked["kv_transfer_params"] = params
    if checked.get("echo") or not all(template.is_text(message) for message in checked["messages"]):
        return None
    where = "kv_transfer_params.prompt_token_ids"
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        raise bad_value(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.",
            where,
        )
    if max(ids) >= tokenizer.VOCABULARY_SIZE:
        raise bad_value(f"Token id {max(ids)} is out of vocabulary", where)
    return ids


def _prompts(prompt: Any) -> tuple[list[list[int]], list[str | None]]:
    """One or several prompts, each text or token ids."""
    if isinstance(prompt, str):
        return [tokenizer.encode(prompt)], [prompt]
    if isinstance(prompt, list) and prompt:
        if all(type(item) is int for item in prompt):
            _check_ids(prompt)
            return [list(prompt)], [None]
        if all(isinstance(item, str) for item in prompt):
            return [tokenizer.encode(item) for item in prompt], list(prompt)
        if all(isinstance(item, list) and all(type(i) is int for i in item) for item in prompt):
            for item in prompt:
                _check_ids(item)
            return [list(item) for item in prompt], [None] * len(prompt)
    raise wrong_field("prompt", "string_type", "Input should be a valid string", prompt)


def _check_ids(ids: Sequence[int]) -> None:
    largest = max(ids, default=0)
    if largest >= tokenizer.VOCABULARY_SIZE:
        raise bad_request(f"Token id {largest} is out of vocabulary")


def _check_length(ids: Sequence[int], limit: int, *, is_text: bool, is_forwarded: bool) -> None:
    if not ids:
        raise bad_request("The decoder prompt cannot be empty")
    if len(ids) > limit and is_forwarded:
        raise bad_request(f"Input length ({len(ids)}) exceeds model's maximum context length ({limit}).")
    if len(ids) > limit:
        # vLLM stops tokenising text one token past the limit, so it does not know how long the prompt is.
        count = limit + 1 if is_text else len(ids)
        counted = f"at least {count}" if count == limit + 1 else f"{count}"
        raise bad_value(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains "
            f"{counted} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            count,
        )
    if len(ids) == limit:
        raise bad_value("max_tokens must be at least 1, got 0.", "max_tokens", 0)


def _check_sampling(checked: Mapping[str, Any], max_tokens: Sequence[int]) -> None:
    """vllm/sampling_params.py, `_verify_args` and `_verify_greedy_sampling`."""
    n = checked.get("n", 1)
    temperature = checked.get("temperature", 1.0)
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= checked.get(name, 0.0) <= 2.0:
            raise bad_request(f"{name} must be in [-2, 2], got {checked[name]}.")
    if temperature < 0.0:
        raise bad_value(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature > 2.0:
        raise bad_value(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    top_p = checked.get("top_p", 1.0)
    if not 0.0 < top_p <= 1.0:
        raise bad_value(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    for limit in max_tokens:
        if limit < 1:
            raise bad_value(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
        min_tokens = checked.get("min_tokens", 0)
        if min_tokens > limit:
            raise bad_request(f"min_tokens must be less than or equal to max_tokens={limit}, got {min_tokens}.")
    if checked.get("min_tokens", 0) < 0:
        raise bad_request(f"min_tokens must be greater than or equal to 0, got {checked['min_tokens']}.")
    if any(not stop for stop in checked.get("stop", ())):
        raise bad_request("stop cannot contain an empty string.")
    if temperature == 0.0 and n > 1:
        raise bad_request(f"n must be 1 when using greedy sampling, got {n}.")
