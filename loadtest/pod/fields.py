"""Types of the request fields, checked the way pydantic checks them for vLLM.

Rule of this room: a table of field names and kinds, one checker per kind. A checker returns the value, converted as
pydantic's lax mode converts it, or raises the 400 that vLLM answers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from loadtest.pod.errors import ApiError, wrong_field

MOST_STOPS = 4
Checker = Callable[[str, Any], Any]


def integer(field: str, value: Any) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        raise wrong_field(
            field,
            "int_from_float",
            "Input should be a valid integer, got a number with a fractional part",
            value,
        )
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            problem = "Input should be a valid integer, unable to parse string as an integer"
            raise wrong_field(field, "int_parsing", problem, value) from None
    raise wrong_field(field, "int_type", "Input should be a valid integer", value)


def number(field: str, value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            problem = "Input should be a valid number, unable to parse string as a number"
            raise wrong_field(field, "float_parsing", problem, value) from None
    raise wrong_field(field, "float_type", "Input should be a valid number", value)


def boolean(field: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false", "on", "off", "yes", "no", "1", "0"):
        return value.lower() in ("true", "on", "yes", "1")
    if isinstance(value, str):
        problem = "Input should be a valid boolean, unable to interpret input"
        raise wrong_field(field, "bool_parsing", problem, value)
    raise wrong_field(field, "bool_type", "Input should be a valid boolean", value)


def string(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise wrong_field(field, "string_type", "Input should be a valid string", value)


def mapping(field: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise wrong_field(field, "dict_type", "Input should be a valid dictionary", value)


def array(field: str, value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise wrong_field(field, "list_type", "Input should be a valid list", value)


def strings(field: str, value: Any) -> list[str]:
    """`stop`: one string, or up to four."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and len(value) > MOST_STOPS:
        problem = f"List should have at most {MOST_STOPS} items after validation, not {len(value)}"
        raise wrong_field(field, "too_long", problem, value)
    return [string(f"{field}.{index}", item) for index, item in enumerate(array(field, value))]


def integers(field: str, value: Any) -> list[int]:
    return [integer(f"{field}.{index}", item) for index, item in enumerate(array(field, value))]


SHARED: dict[str, Checker] = {
    "model": string,
    "frequency_penalty": number,
    "logit_bias": mapping,
    "max_tokens": integer,
    "n": integer,
    "presence_penalty": number,
    "response_format": mapping,
    "seed": integer,
    "stop": strings,
    "stream": boolean,
    "stream_options": mapping,
    "temperature": number,
    "top_p": number,
    "top_k": integer,
    "min_p": number,
    "repetition_penalty": number,
    "stop_token_ids": integers,
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "min_tokens": integer,
    "skip_special_tokens": boolean,
    "add_special_tokens": boolean,
    "truncate_prompt_tokens": integer,
    "prompt_logprobs": integer,
    "priority": integer,
    "request_id": string,
    "session_id": string,
    "return_token_ids": boolean,
    "return_tokens_as_token_ids": boolean,
    "cache_salt": string,
    "kv_transfer_params": mapping,
    "vllm_xargs": mapping,
    "echo": boolean,
    "user": string,
}
CHAT: dict[str, Checker] = {
    **SHARED,
    "messages": array,
    "logprobs": boolean,
    "top_logprobs": integer,
    "max_completion_tokens": integer,
    "tools": array,
    "parallel_tool_calls": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "include_reasoning": boolean,
    "return_prompt_text": boolean,
    "chat_template_kwargs": mapping,
}
COMPLETION: dict[str, Checker] = {**SHARED, "logprobs": integer, "suffix": string}


def check(body: Mapping[str, Any], table: Mapping[str, Checker], required: tuple[str, ...]) -> dict[str, Any]:
    """The body with its known fields checked and converted. Nulls are left out, unknown fields kept."""
    if not isinstance(body, Mapping):
        raise wrong_field(
            "",
            "model_attributes_type",
            "Input should be a valid dictionary or object to extract fields from",
            body,
        )
    first: ApiError | None = None
    for name in required:
        if name not in body:
            first = wrong_field(name, "missing", "Field required", dict(body))
            break
    checked: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        checker = table.get(name)
        checked[name] = checker(name, value) if checker else value
    if first:
        raise first
    return checked
