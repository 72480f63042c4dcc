"""The command line: `env`, `up`, `down`, `status`.

Rule of this room: words to calls, results to lines, errors to exit codes (see `errors`); nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.vllm_cpu import environment
from loadtest.vllm_cpu.cluster import AT_ONCE, Cluster
from loadtest.vllm_cpu.environment import say
from loadtest.vllm_cpu.errors import VllmCpuError
from loadtest.vllm_cpu.layout import HOME_VARIABLE, Layout
from loadtest.vllm_cpu.locks import exclusive
from loadtest.vllm_cpu.pod import START_SECONDS
from loadtest.vllm_cpu.spec import Handover, Role
from loadtest.vllm_cpu.state import state_file


def build(options: argparse.Namespace) -> None:
    environment.ensure()


def up(options: argparse.Namespace) -> None:
    options.state.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with exclusive(options.state / "up.lock", lambda: say("another `up` or `down` is running, waiting")):
        cluster = Cluster.start(
            options.prefill,
            options.decode,
            options.plain,
            kv_gib=options.kv_gib,
            bidirectional=[Role(role) for role in options.bidirectional],
            max_model_len=options.max_model_len,
            handover=options.handover,
            engine_arguments=options.engine_arguments,
            directory=options.state,
            guarded=False,
            at_once=options.at_once,
            timeout_seconds=options.timeout,
        )
    say(f"all healthy after {time.monotonic() - began:.0f} s; state in {state_file(options.state)}")
    print_pods(cluster)


def down(options: argparse.Namespace) -> None:
    if not options.state.is_dir():
        say(f"nothing is up in {options.state}")
        return
    with exclusive(options.state / "up.lock", lambda: say("another `up` or `down` is running, waiting")):
        cluster = Cluster.attach(options.state)
        cluster.stop()
    names = ", ".join(pod.name for pod in cluster.pods)
    say(f"stopped {names}" if names else f"nothing is up in {options.state}")


def status(options: argparse.Namespace) -> None:
    cluster = Cluster.attach(options.state)
    if not cluster.pods:
        say(f"nothing is up in {options.state}")
    print_pods(cluster)


def print_pods(cluster: Cluster) -> None:
    for pod in cluster.pods:
        health = "healthy" if pod.healthy() else "unhealthy" if pod.alive() else "gone"
        gib = pod.resident_bytes() / 2**30
        say(f"{pod.name:<12} {pod.url:<24} {health:<10} pid {pod.pid}  {gib:.1f} GiB  "
            f"events {pod.spec.event_endpoint}  log {pod.log}")  # fmt: skip


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="python -m loadtest.vllm_cpu",
        description="Real stock vLLM pods on CPU.",
        epilog=f"Everything lies in ${HOME_VARIABLE} (default ~/.cache/ppd-gateway). "
        "Exit codes: 3 packages cannot be reached, 4 no environment, 5 a pod failed, 6 already up.",
    )
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, action: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=HELP[name], description=HELP[name])
        added.set_defaults(action=action)
        return added

    command("env", build)
    starting = command("up", up)
    starting.add_argument("--prefill", type=int, default=1, metavar="N")
    starting.add_argument("--decode", type=int, default=2, metavar="N")
    starting.add_argument("--plain", type=int, default=0, metavar="N", help="pods without a KV connector")
    starting.add_argument("--kv-gib", type=int, default=1, metavar="GIB", help="KV memory per pod, whole GiB")
    starting.add_argument("--max-model-len", type=int, default=8192, metavar="TOKENS")
    starting.add_argument(
        "--bidirectional",
        nargs="*",
        choices=[Role.PREFILL, Role.DECODE],
        default=[],
        metavar="ROLE",
        help="roles with bidirectional_kv_xfer: prefill pods read KV back with it, decode pods pin blocks with it",
    )
    starting.add_argument(
        "--handover", type=Handover, choices=list(Handover), default=Handover.NIXL, help="how KV gets from P to D"
    )
    starting.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help="pods starting together")
    starting.add_argument("--timeout", type=float, default=START_SECONDS, metavar="SECONDS")
    starting.add_argument("engine_arguments", nargs="*", metavar="-- ARG", help="more vLLM arguments")
    for taking_state in (starting, command("down", down), command("status", status)):
        taking_state.add_argument("--state", type=Path, default=Layout.default().pods, metavar="DIR")
    return root


HELP = {
    "env": "build the environment and the model, once",
    "up": "start pods and wait until all are healthy",
    "down": "stop the pods of `up`",
    "status": "show the pods of `up`",
}


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        options.action(options)
    except VllmCpuError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
