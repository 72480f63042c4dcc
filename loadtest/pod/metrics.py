"""`/metrics`, with the names and types of vLLM's (vllm/v1/metrics/loggers.py and …/nixl/stats.py).

Rule of this room: read the counters, print them; nothing is counted here.
"""

from collections.abc import Iterable

from loadtest.engine.request import Finish
from loadtest.pod.state import PodState

_NIXL_BYTE_BUCKETS = tuple(float(2 ** (10 + power)) for power in range(1, 25, 2))
_NIXL_TIME_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)


Labels = dict[str, str]
NONE: Labels = {}


class _Page:
    """Lines in the Prometheus text format, every sample with vLLM's two labels."""

    def __init__(self, model: str) -> None:
        self.lines: list[str] = []
        self._labels = {"engine": "0", "model_name": model}

    def _head(self, name: str, kind: str, text: str) -> None:
        self.lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def _sample(self, name: str, labels: Labels, value: float) -> None:
        pairs = ",".join(f'{key}="{label}"' for key, label in sorted(labels.items()))
        self.lines.append(f"{name}{{{pairs}}} {float(value)}")

    def gauge(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> None:
        self._head(name, "gauge", text)
        for labels, value in values:
            self._sample(name, self._labels | labels, value)

    def counter(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> None:
        self._head(f"{name}_total", "counter", text)
        for labels, value in values:
            self._sample(f"{name}_total", self._labels | labels, value)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], values: list[float]) -> None:
        self._head(name, "histogram", text)
        for bound in buckets:
            count = sum(value <= bound for value in values)
            self._sample(f"{name}_bucket", self._labels | {"le": str(bound)}, count)
        self._sample(f"{name}_bucket", self._labels | {"le": "+Inf"}, len(values))
        self._sample(f"{name}_count", self._labels, len(values))
        self._sample(f"{name}_sum", self._labels, sum(values))

    def process(self, name: str, text: str, value: float) -> None:
        """What prometheus_client says of the process, without labels."""
        self._head(name, "gauge", text)
        self.lines.append(f"{name} {value!r}")

    def info(self, name: str, text: str, labels: Labels) -> None:
        self._head(name, "gauge", text)
        self._sample(name, {**labels, "engine": "0"}, 1)


def one(value: float) -> list[tuple[Labels, float]]:
    """A metric without labels of its own."""
    return [(NONE, value)]


def render(state: PodState) -> str:
    """The page."""
    engine = state.running.engine
    stats = engine.stats
    computed = stats.prompt_tokens - stats.prompt_tokens_local - stats.prompt_tokens_remote
    page = _Page(state.model.name)
    page.process(
        "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", state.started_s
    )
    page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", one(engine.num_running))
    page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", one(engine.num_waiting))
    page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", one(engine.pool.usage))
    page.counter("vllm:prefix_cache_queries", "Prefix cache queries, in tokens.", one(stats.prefix_queries))
    page.counter("vllm:prefix_cache_hits", "Prefix cache hits, in tokens.", one(stats.prefix_hits))
    page.counter(
        "vllm:external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, in tokens.",
        one(stats.external_queries),
    )
    page.counter(
        "vllm:external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, in tokens.",
        one(stats.external_hits),
    )
    page.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", one(stats.preemptions))
    page.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", one(stats.prompt_tokens))
    page.counter(
        "vllm:prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        [
            ({"source": "local_compute"}, computed),
            ({"source": "local_cache_hit"}, stats.prompt_tokens_local),
            ({"source": "external_kv_transfer"}, stats.prompt_tokens_remote),
        ],
    )
    page.counter("vllm:generation_tokens", "Number of generation tokens processed.", one(stats.generation_tokens))
    page.counter(
        "vllm:request_success",
        "Count of successfully processed requests.",
        [({"finished_reason": str(reason)}, stats.finished[reason]) for reason in Finish],
    )
    page.info(
        "vllm:cache_config_info",
        "Information of the LLMEngine CacheConfig",
        {
            "block_size": str(state.block_size),
            "enable_prefix_caching": str(engine.pool.caching),
            "num_gpu_blocks": str(len(engine.pool)),
        },
    )
    if engine.connector is not None:
        _nixl(page, state)
    return "\n".join(page.lines) + "\n"


def _nixl(page: _Page, state: PodState) -> None:
    connector = state.running.engine.connector
    assert connector is not None
    done = [transfer for transfer in state.transfers if transfer.ok]
    page.histogram(
        "vllm:nixl_xfer_time_seconds",
        "Histogram of transfer duration for NIXL KV Cache transfers.",
        _NIXL_TIME_BUCKETS,
        [transfer.duration_s for transfer in done],
    )
    page.histogram(
        "vllm:nixl_bytes_transferred",
        "Histogram of bytes transferred per NIXL KV Cache transfers.",
        _NIXL_BYTE_BUCKETS,
        [float(transfer.num_bytes) for transfer in done],
    )
    failed = len(state.transfers) - len(done)
    page.counter("vllm:nixl_num_failed_transfers", "Number of failed NIXL KV Cache transfers.", one(failed))
    page.counter(
        "vllm:nixl_num_kv_expired_reqs",
        "Number of requests that had their KV expire.",
        one(connector.leases.num_expired),
    )
    page.counter(
        "vllm:nixl_num_notifications_after_expiry",
        "Number of completion notifications for requests that were no longer tracked.",
        one(connector.leases.num_released_late),
    )
