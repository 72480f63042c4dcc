"""What is said of this machine: files, the shared state, open files.

Rule of this room: nothing is written; a state URL is shown without its password.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

from gateway.ops import keys
from gateway.ops.config import Config
from gateway.ops.doctor.findings import Finding, fail, ok, warn
from gateway.ops.layers import ConfigError
from gateway.ops.state import shown

HERE = "this machine"
FILES_PER_STREAM = 2
"""The client's connection and the pod's; a prefill leg is over when the stream begins."""

SPARE_FILES = 256
_ASK_S = 2.0


def judge_files(config: Config) -> Iterator[Finding]:
    """Keys, certificates, and what the configuration itself warns of."""
    try:
        keys.check(config)
    except ConfigError as error:
        yield fail("keys and certificates", HERE, str(error), "put a good file there")
    else:
        yield ok("keys and certificates", HERE, "can be used")
    for warning in config.warnings:
        key, _, said = warning.partition(": ")
        if "every user of this machine can read" in said:
            path = said.rpartition(" ")[2]
            yield warn(key, HERE, said, f"chmod 600 {path}")
        elif key == "state_file":
            yield fail(key, HERE, said, "state_file = a path in a folder that the gateway's user may write in")
        elif key == "insecure":
            yield warn(key, HERE, said, "api_keys = FILE, made by ppd-gateway keys add NAME --file FILE")
        else:
            yield warn(key, HERE, said, "prefill = the URLs of prefill pods")


def judge_open_files(streams: int, limit: int | None = None) -> Finding:
    """Whether so many streams at once fit. limit: of open files; this process's own where it is not given."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    wanted = FILES_PER_STREAM * streams + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ok("open files", HERE, f"{streams} streams at once fit")
    seen = f"at most {soft}, hence about {max(0, soft - SPARE_FILES) // FILES_PER_STREAM} streams at once"
    change = f"ulimit -n {wanted} (systemd: LimitNOFILE={wanted}) for {streams} streams"
    return warn("open files", HERE, seen, change)


async def judge_state(config: Config) -> Iterator[Finding]:
    """Whether Redis or Valkey answers, and in time."""
    if config.state is None:
        return iter(())
    from gateway.net.redis_link import LinkError, RedisLink

    about = f"state {shown(config.state)}"
    link = RedisLink(config.state, config.state_namespace, _ASK_S)
    link.start()
    try:
        await link.get([b"doctor"])
        began = time.monotonic()
        await link.get([b"doctor"])
        seconds = time.monotonic() - began
    except LinkError as error:
        change = "start Redis or Valkey there, or correct state (redis://USER:PASSWORD@HOST:PORT/DB)"
        return iter((fail("state", about, f"it does not answer: {error}", change),))
    finally:
        await link.stop()
    if seconds > config.state_timeout_s:
        change = f"state_timeout_s = {2 * seconds:.3f}, or a server nearer by"
        seen = f"answers in {1000 * seconds:.1f} ms, requests wait at most {1000 * config.state_timeout_s:g} ms"
        return iter((warn("state", about, seen, change),))
    return iter((ok("state", about, f"answers in {1000 * seconds:.1f} ms"),))
