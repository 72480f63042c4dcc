"""`python -m loadtest.fit pods`: a profile of real vLLM pods, and how well it predicts a workload it has not seen.

Rule of this room: everything that is not measured (limits, sizes) is asked of the pods or stated on the command line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from loadtest.engine import profile as profiles
from loadtest.fit import check
from loadtest.fit.pods import UNKNOWN, Limits, PodFit, fit_pods
from loadtest.fit.profile_file import Provenance, machine, save, to_toml
from loadtest.fit.stream import PATIENCE_S, PodAnswerError
from loadtest.fit.sweeps import QUICK, Answer, Asker, Kind, Plan, medians
from loadtest.vllm_cpu.bystanders import Bystanders
from loadtest.vllm_cpu.cluster import Cluster
from loadtest.vllm_cpu.cores import unbind
from loadtest.vllm_cpu.layout import Layout
from loadtest.vllm_cpu.pod import Pod
from loadtest.vllm_cpu.spec import Role

NAME = "cpu-tiny"
CPU_BATCHED_TOKENS = 2048
"""vLLM's default for an API server on CPU (vllm/engine/arg_utils.py), unless the pod was told otherwise."""
CPU_MAX_NUM_SEQS = 32
"""What `loadtest.vllm_cpu` starts its pods with."""
KINDS: tuple[Kind, ...] = ("prefill", "context", "decode", "handover")


@dataclass(frozen=True, slots=True)
class Pods:
    """serving: answers alone, and is D behind `prefill`."""

    serving: str
    prefill: str | None
    model: str
    limits: Limits
    version: str


def add_command(commands: Any) -> None:
    parser = commands.add_parser("pods", help="fit a profile to real vLLM pods")
    parser.add_argument("--pod", metavar="URL", help="a pod that serves alone (a decode pod does)")
    parser.add_argument(
        "--prefill", metavar="URL", help="a prefill pod in front of it; without, no hand-over is fitted"
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=Layout.default().pods,
        metavar="DIR",
        help="without --pod: pods of loadtest.vllm_cpu",
    )
    parser.add_argument("-o", "--output", type=Path, default=profiles.PROFILES / f"{NAME}.toml", metavar="TOML")
    parser.add_argument("--name", default=NAME)
    parser.add_argument("--quick", action="store_true", help="fewer questions: some ten seconds")
    parser.add_argument("--max-num-batched-tokens", type=int, default=CPU_BATCHED_TOKENS, metavar="N")
    parser.add_argument("--max-num-seqs", type=int, default=CPU_MAX_NUM_SEQS, metavar="N")
    parser.add_argument(
        "--model-config", type=Path, default=Layout.default().model / "config.json", metavar="JSON", help="for KV sizes"
    )
    parser.set_defaults(run=run)


def run(options: Namespace) -> int:
    ours: list[Pod] = []
    if options.pod is None:
        ours = pods_of(options.state)
        options.pod, options.prefill = (pod.url for pod in ours)
    pods = look_at(options)
    with Bystanders(ours) as others:
        answers = ask(pods, QUICK if options.quick else Plan(), _progress)
    fitted = fit_pods(options.name, medians(answers), pods.limits)
    with Bystanders(ours) as others_then:
        took = check_on(pods, fitted.profile) if pods.prefill else []
    shares = {"others_cpu_share_fit": others.share, "others_cpu_share_unseen": others_then.share} if ours else {}
    save(options.output, written(fitted, pods, took, shares, options.quick))
    for name, value, error in zip(UNKNOWN, fitted.fitted.values, fitted.fitted.errors, strict=True):
        print(f"{name:28} {value:.3g} ± {error:.1g}")
    for key, number in (errors_of(fitted, took) | shares).items():
        print(f"{key:28} {number}")
    print(f"written to {options.output}")
    return 0


def pods_of(directory: Path) -> list[Pod]:
    """A serving and a prefill pod of a state file, which from now on may use every core."""
    cluster = Cluster.attach(directory)
    prefill, decode = cluster.of_role(Role.PREFILL), cluster.of_role(Role.DECODE)
    if not prefill or not decode:
        raise PodAnswerError(f"{directory}: no prefill and decode pod is up there (python -m loadtest.vllm_cpu up)")
    found = [decode[0], prefill[0]]
    unbind(found)
    return found


def look_at(options: Namespace) -> Pods:
    """Ask the serving pod what it is. Raises PodAnswerError."""
    url = options.pod.rstrip("/")
    try:
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
            model = http.get(f"{url}/v1/models").raise_for_status().json()["data"][0]
            version = http.get(f"{url}/version").raise_for_status().json()["version"]
            page = http.get(f"{url}/metrics").raise_for_status().text
        config = json.loads(options.model_config.read_text(encoding="utf-8"))
    except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
        raise PodAnswerError(f"{url}: cannot be asked what it is ({error})") from error
    cache = _cache_config(url, page)
    limits = Limits(
        max_model_len=int(model["max_model_len"]),
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        block_size=int(cache["block_size"]),
        num_blocks=int(cache["num_gpu_blocks"]) - 1,  # one is vLLM's null block
        bytes_per_token=kv_bytes_per_token(config),
    )
    return Pods(url, options.prefill.rstrip("/") if options.prefill else None, model["id"], limits, version)


def kv_bytes_per_token(config: dict[str, Any]) -> int:
    """Keys and values of all layers, from a model's config.json."""
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    kind = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    return int(2 * config["num_hidden_layers"] * heads * head_dim * (4 if kind == "float32" else 2))


def _cache_config(url: str, page: str) -> dict[str, str]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "vllm:cache_config_info":
                return dict(sample.labels)
    raise PodAnswerError(f"{url}/metrics has no vllm:cache_config_info")


def ask(pods: Pods, plan: Plan, said: Any = lambda *_: None) -> list[Answer]:
    asker = Asker(pods.model, pods.serving, pods.prefill, seed=time.time_ns() % 1_000_000_007)
    return asyncio.run(asker.ask_all(plan, said))


def check_on(pods: Pods, profile: profiles.Profile, talks: Sequence[check.Talk] | None = None) -> list[check.Took]:
    """The unseen workload on these pods and on the model; a round before it warms up what it meets first."""
    chosen = check.script() if talks is None else talks
    assert pods.prefill is not None
    seed = time.time_ns() % 1_000_000_007
    measured = asyncio.run(check.measure(pods.model, pods.prefill, pods.serving, chosen, seed))
    return check.compare(chosen, measured, check.predict(profile, chosen))


def errors_of(fitted: PodFit, took: Sequence[check.Took]) -> dict[str, object]:
    """What is noted in the profile: of the fit by kind of question, of the unseen workload by route."""
    kinds = {answer.question.kind for answer in fitted.answers}
    found: dict[str, object] = {
        f"fit_median_error_{kind}": round(fitted.median_error(kind), 4) for kind in KINDS if kind in kinds
    }
    for route in ("pd", "local") if took else ():
        errors = check.errors(took, route)
        found |= {
            f"unseen_{route}_turns": errors.turns,
            f"unseen_{route}_ttft_median_error": round(errors.ttft, 4),
            f"unseen_{route}_tpot_median_error": round(errors.tpot, 4),
            f"unseen_{route}_ttft_bias": round(errors.mean_ttft, 4),
            f"unseen_{route}_tpot_bias": round(errors.mean_tpot, 4),
        }
    return found


def written(fitted: PodFit, pods: Pods, took: Sequence[check.Took], shares: Mapping[str, float], quick: bool) -> str:
    """The profile file."""
    where = machine()
    sources = {
        "sweeps": f"fitted by least squares to {len(fitted.answers)} questions put to real vLLM pods, see [measured]",
        "pod": "as the pod itself says (/v1/models, /metrics)",
        "flags": "how the pod was started",
        "model": "computed from the model's config.json",
        "none": "held at 0: nothing in these questions tells it from the others",
    }
    of = {name: "sweeps" for name in UNKNOWN if name != "transfer.token_s"}
    of |= {"transfer.bandwidth_bytes_per_s": "sweeps", "transfer.latency_s": "none", "step.handover_s": "none"}
    of |= {"cache.bytes_per_token": "model", "cache.block_size": "pod", "cache.num_blocks": "pod"}
    of |= {"scheduler.max_num_batched_tokens": "flags", "scheduler.max_num_seqs": "flags"}
    errors = dict(zip(UNKNOWN, fitted.fitted.errors.tolist(), strict=True))
    del errors["transfer.token_s"]
    measured = {
        **where,
        "engine": f"vLLM {pods.version}, model {pods.model}",
        "command": "python -m loadtest.vllm_cpu up --prefill 1 --decode 1; python -m loadtest.fit pods"
        + " --quick" * quick,
        **{name: round(share, 3) for name, share in shares.items()},
        **errors_of(fitted, took),
    }
    heading = "Real vLLM pods as they ran on one machine. Written by `python -m loadtest.fit pods`."
    return to_toml(fitted.profile, Provenance(sources, of, "pod", errors), measured, heading)


def _progress(done: int, total: int) -> None:
    if done % 10 == 0 or done == total:
        print(f"{done}/{total} questions", file=sys.stderr, flush=True)
