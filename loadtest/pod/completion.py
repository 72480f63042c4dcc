"""`/v1/completions`, from a run to JSON.

Rule of this room: one function per shape vLLM sends (vllm/entrypoints/openai/completion/serving.py); nothing here
waits.
"""

from loadtest.pod.answer import Answer, Delta
from loadtest.pod.run import Run
from loadtest.pod.shapes import Json, completion_logprobs, head, prompt_details, usage, without_nulls


def full(run: Run, *, fingerprint: str, block_size: int) -> Json:
    """The answer in one piece (`request_output_to_completion_response`)."""
    last = len(run.wanted.prompts) - 1
    return {
        **head(run, "text_completion"),
        "choices": [_choice(run, answer) for answer in run.answers],
        "service_tier": None,
        "system_fingerprint": fingerprint,
        "usage": usage(run.prompt_tokens, run.completion_tokens)
        | {
            "prompt_tokens_details": prompt_details(run, run.cached_tokens(last), None),
            "completion_tokens_details": None,
        },
        "kv_transfer_params": run.params.get(0),
        "ec_transfer_params": None,
        "metrics": None,
    }


def _choice(run: Run, answer: Answer) -> Json:
    wanted = run.wanted
    prompt = answer.index // wanted.n
    echoed = (wanted.prompt_texts[prompt] or "") if wanted.echo else ""
    return {
        "index": answer.index,
        "text": echoed + answer.text,
        "logprobs": completion_logprobs(answer.token_ids, wanted.logprobs, 0),
        "finish_reason": answer.finish,
        "stop_reason": answer.stop_reason,
        "token_ids": list(answer.token_ids) if wanted.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": list(wanted.prompts[prompt]) if wanted.return_token_ids else None,
        "routed_experts": None,
    }


def delta_chunk(run: Run, answer: Answer, delta: Delta, *, fingerprint: str, first: bool) -> Json:
    """Some more text, and the end of a choice with its last text."""
    wanted = run.wanted
    prompt = answer.index // wanted.n
    echoed = (wanted.prompt_texts[prompt] or "") if wanted.echo and first else ""
    offset = len(answer.text) - len(delta.text)
    give_prompt = (wanted.return_token_ids or wanted.echo) and first
    choice: Json = {
        "index": answer.index,
        "text": echoed + delta.text,
        "logprobs": completion_logprobs(delta.token_ids, wanted.logprobs, offset),
        "finish_reason": delta.finish,
        "stop_reason": delta.stop_reason,
        "prompt_token_ids": list(wanted.prompts[prompt]) if give_prompt else None,
        "token_ids": list(delta.token_ids) if wanted.return_token_ids else None,
    }
    chunk = head(run, "text_completion") | {"choices": [choice]}
    if wanted.continuous_usage:
        chunk["usage"] = usage(len(wanted.prompts[prompt]), len(answer.token_ids))
    if delta.finish is not None and not wanted.include_usage:
        chunk["system_fingerprint"] = fingerprint
    return chunk


def usage_chunk(run: Run, *, fingerprint: str) -> Json:
    """The last chunk, when `stream_options.include_usage` asks for it."""
    counts = usage(run.prompt_tokens, run.completion_tokens) | {
        "prompt_tokens_details": prompt_details(run, run.cached_tokens(0), None)
    }
    chunk: Json = without_nulls(
        {**head(run, "text_completion"), "choices": [], "usage": counts, "system_fingerprint": fingerprint}
    )
    return chunk
