"""`python -m loadtest.pod --role prefill --port 0`: one simulated pod; its URL is the first line printed."""

import argparse
import asyncio
import logging
import signal

from loadtest.engine import profile
from loadtest.pod.simulated import PodOptions, SimulatedPod


def parse(arguments: list[str] | None = None) -> PodOptions:
    """Command line to options."""
    default = PodOptions()
    parser = argparse.ArgumentParser(prog="python -m loadtest.pod", description=__doc__)
    parser.add_argument("--role", choices=["prefill", "decode", "replica"], default=default.role)
    parser.add_argument("--host", default=default.host)
    parser.add_argument("--port", type=int, default=default.port, help="0: any free port")
    parser.add_argument("--profile", default="h100-llama3.1-8b", help=f"{', '.join(profile.names())} or a TOML file")
    parser.add_argument("--time-scale", type=float, default=default.time_scale, help="10: ten times as fast")
    parser.add_argument("--block-size", type=int, help="tokens per KV block")
    parser.add_argument("--num-blocks", type=int, help="KV blocks")
    parser.add_argument("--max-model-len", type=int, help="tokens")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--model", default=default.model, help="served model name")
    parser.add_argument("--lease-s", type=float, default=default.lease_s, help="kv_lease_duration")
    parser.add_argument("--bidirectional", action="store_true", help="bidirectional_kv_xfer: D offers its KV back")
    parser.add_argument("--handshake-timeout-s", type=float, default=5.0, help="waiting for a pod that is not there")
    parser.add_argument("--bandwidth-gbps", type=float, help="of each pod-to-pod link, gigabits per second")
    parser.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false")
    parser.add_argument("--no-prompt-tokens-details", dest="prompt_tokens_details", action="store_false")
    parser.add_argument("--enable-scale-out", dest="scale_out", action="store_true", help="the render endpoints")
    parser.add_argument("--lora-updates", action="store_true", help="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
    parser.add_argument("--name", help="in the topic of the KV events, kv@<name>; otherwise the port")
    parser.add_argument("--kv-events", action="store_true", help="publish KV events over ZMQ")
    parser.add_argument("--event-port", type=int, default=default.event_port, help="0: any free port")
    parser.add_argument("--replay-port", type=int, default=default.replay_port, help="0: any free port")
    parser.add_argument("--no-replay", dest="replay", action="store_false", help="no socket for missed KV events")
    parser.add_argument("--buffer-steps", type=int, default=default.buffer_steps, help="batches kept for the replay")
    return PodOptions(**vars(parser.parse_args(arguments)))


async def serve(options: PodOptions) -> None:
    """Run until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with SimulatedPod(options) as pod:
        print(pod.url, flush=True)
        await stop.wait()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    options = parse()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(options))
    else:
        uvloop.run(serve(options))


if __name__ == "__main__":
    main()
