"""What is counted of requests.

Rule of this room: a request's labels are looked up once, for all it is counted in; after that counting is additions on
children that are at hand. Every label is one of a small set: paths of the table, routes, turns, arms, reason classes,
and MAX_MODELS models that pods serve.

Names and buckets follow OpenTelemetry's conventions for generative AI where there are such (docs/decisions/0024).
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable
from functools import cached_property

from gateway.core.reasons import ReasonClass
from gateway.net.parts import Parts
from gateway.net.records import GAP_BOUNDS_S, Outcome, RequestRecord
from gateway.ops.metrics.families import Book, Count, Counter, Histogram, Shown, Spread, Values

MAX_MODELS = 16
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
}
"""`gen_ai.operation.name` by path."""

PROVIDER = "vllm"

DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68)
FIRST_TOKEN_S: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
FIRST_TOKEN_S += (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
TOKEN_S: tuple[float, ...] = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1)
TOKEN_S += (0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
DECISION_S = (0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01)
SCORES = (-4, -2, -1, -0.75, -0.5, -0.3, -0.2, -0.1, -0.05, 0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 4)
RATIOS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 4, 10)

_SHARED = ("route", "turn", "arm")
_GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", *_SHARED)


class RequestMetrics:
    """All families of requests. `started` and `finished` are told of each."""

    def __init__(self, book: Book) -> None:
        self._live: dict[int, RequestRecord] = {}
        self._cells: dict[tuple[str, str | None, str | None, str, str], _Cell] = {}
        self._models: set[str | None] = {"other"}
        self.requests = Counter(
            book,
            "ppd_requests",
            "Requests that ended, by outcome: ok, rejected (4xx), failed, broken (an error after the first byte), "
            "cancelled (the client went away).",
            ["path", *_SHARED, "outcome", "status"],
        )
        Shown(
            book,
            "ppd_requests_in_flight",
            "Requests being served; route is none until it is decided.",
            ["route", "arm"],
            read=self._in_flight,
        )
        self.duration = Histogram(
            book,
            "gen_ai_server_request_duration_seconds",
            "From a request's arrival to its last byte (gen_ai.server.request.duration). error_type: empty, or the "
            "outcome that was not ok.",
            [*_GEN_AI, "error_type"],
            bounds=DURATION_S,
        )
        self.ttft = Histogram(
            book,
            "gen_ai_server_time_to_first_token_seconds",
            "From a streamed request's arrival to the pod's first event (gen_ai.server.time_to_first_token).",
            _GEN_AI,
            bounds=FIRST_TOKEN_S,
        )
        self.tpot = Histogram(
            book,
            "gen_ai_server_time_per_output_token_seconds",
            "Mean gap between the tokens of one stream after the first (gen_ai.server.time_per_output_token).",
            _GEN_AI,
            bounds=TOKEN_S,
        )
        self.gaps = Histogram(
            book,
            "ppd_inter_token_latency_seconds",
            "Every wait between two reads of a pod's stream (ITL) of the streams that ended well; tokens that came "
            "together are one read.",
            _SHARED,
            bounds=GAP_BOUNDS_S,
        )
        self.prefill = Histogram(
            book,
            "ppd_prefill_leg_seconds",
            "The prefill leg, from sending to P's answer.",
            _SHARED,
            bounds=FIRST_TOKEN_S,
        )
        self.tokens = Counter(
            book,
            "ppd_tokens",
            "Tokens as the pods counted them: prompt, cached (on the answering pod), prefill_cached (on P), output, "
            "readback (read by P from a decode pod).",
            [*_SHARED, "kind"],
        )
        self.sizes = Histogram(
            book,
            "ppd_request_tokens",
            "Tokens of one request by kind: input, output (bounds of gen_ai.client.token.usage).",
            [*_SHARED, "kind"],
            bounds=TOKENS,
        )
        self.decisions = Counter(
            book,
            "ppd_decisions",
            "Requests by the route taken in the end and what decided it (see below).",
            [*_SHARED, "reason"],
        )
        self.scores = Histogram(
            book,
            "ppd_decision_score",
            "S of the measured table (above 0: straight to the decode pod), by the route taken; in shadow, of what "
            "would have been decided; without a sum.",
            ["route", "arm"],
            bounds=SCORES,
        )
        self.decision = Histogram(
            book,
            "ppd_decision_seconds",
            "Time from a recognised request to its plan.",
            ["arm"],
            bounds=DECISION_S,
        )
        self.ttft_ratio = Histogram(
            book,
            "ppd_ttft_prediction_ratio",
            "Observed TTFT over what the table says of the route taken, where the table decided.",
            ["route", "arm"],
            bounds=RATIOS,
        )
        self.tpot_ratio = Histogram(
            book,
            "ppd_tpot_prediction_ratio",
            "Observed TPOT over what the table says of the route taken, where the table decided.",
            ["route", "arm"],
            bounds=RATIOS,
        )
        self.fallbacks = Counter(
            book,
            "ppd_fallbacks",
            "Requests that were not answered by their first plan, by the route and outcome in the end.",
            ["route", "arm", "outcome"],
        )
        self.moved = Counter(
            book,
            "ppd_kv_moved_tokens",
            "Tokens whose KV went over the network, by leg: handover (P to D, what D was not expected to have), "
            "readback (D to P).",
            ["leg", "arm"],
        )
        self.avoided = Counter(
            book,
            "ppd_kv_avoided_tokens",
            "Tokens whose KV the answering pod computed by itself; through P it would have fetched them.",
            ["route", "arm"],
        )

    def started(self, record: RequestRecord) -> None:
        self._live[id(record)] = record

    def finished(self, record: RequestRecord) -> None:
        self._live.pop(id(record), None)
        turn = record.turn
        word = "none" if turn is None else "1" if turn == 1 else "2+"
        model = record.model if record.model in self._models else self._bounded(record.model)
        key = (record.path, model, record.route, word, record.arm)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell(self, model or "none", record, word)
        cell.add(record)

    def _bounded(self, model: str | None) -> str | None:
        if model is None or len(self._models) < MAX_MODELS:
            self._models.add(model)
            return model
        return "other"

    def _in_flight(self, parts: Parts) -> Iterable[tuple[Values, float]]:
        counts = Counts((record.route or "none", record.arm) for record in self._live.values())
        return counts.items() or [(("none", "canary"), 0)]


class _Cell:
    """The children of one (path, model, route, turn, arm); those that not every request needs are made on demand."""

    def __init__(self, of: RequestMetrics, model: str, record: RequestRecord, turn: str) -> None:
        route, arm = record.route or "none", record.arm
        self._of = of
        self._path = record.path
        self._shared = shared = (route, turn, arm)
        operation = OPERATIONS.get(record.path)
        self._gen_ai = None if operation is None else (operation, PROVIDER, model, *shared)
        self._ends: dict[tuple[Outcome, int], tuple[Count, Spread | None]] = {}
        self._reasons: dict[str, Count] = {}
        if self._gen_ai is None:
            return
        self._well = of.duration.child(*self._gen_ai, "")
        self._decision = of.decision.child(arm)
        self._ttft, self._tpot = of.ttft.child(*self._gen_ai), of.tpot.child(*self._gen_ai)
        self._gaps = of.gaps.child(*shared)
        self._input, self._output = (of.sizes.child(*shared, kind) for kind in ("input", "output"))
        kinds = ("prompt", "cached", "prefill_cached", "output", "readback")
        self._prompt, self._cached, self._prefill_cached, self._out, self._read = (
            of.tokens.child(*shared, kind) for kind in kinds
        )

    def add(self, record: RequestRecord) -> None:
        end = (record.outcome, record.status)
        ended, lasted = self._ends.get(end) or self._new_end(*end)
        ended.value += 1
        if lasted is None:
            return
        lasted.observe(record.total_s)
        if record.reason_class is not None:
            self._decided(record, record.reason_class)
        if record.ttft_s is not None and record.stream:
            self._ttft.observe(record.ttft_s)
        if record.tpot_s is not None:
            self._tpot.observe(record.tpot_s)
        if record.gaps is not None:
            self._gaps.add(record.gaps, record.gaps_s)
        if record.prompt_tokens is not None:
            self._counted(record, record.prompt_tokens)

    def _new_end(self, outcome: Outcome, status: int) -> tuple[Count, Spread | None]:
        """What counts the requests that end so, and how long they took, where they generate."""
        ended = self._of.requests.child(self._path, *self._shared, outcome.value, str(status))
        lasted: Spread | None = None
        if self._gen_ai is not None:
            good = outcome is Outcome.OK
            lasted = self._well if good else self._of.duration.child(*self._gen_ai, outcome.value)
        self._ends[outcome, status] = found = (ended, lasted)
        return found

    def _decided(self, record: RequestRecord, reason: ReasonClass) -> None:
        count = self._reasons.get(reason)
        if count is None:
            count = self._reasons[reason] = self._of.decisions.child(*self._shared, reason.value)
        count.value += 1
        if record.decide_s is not None:
            self._decision.observe(record.decide_s)
        if record.score is not None:
            self._score.observe(record.score)
        if record.attempts > 1:
            route, _, arm = self._shared
            self._of.fallbacks.child(route, arm, record.outcome.value).value += 1
        elif record.forecast_ttft_s is not None and record.stream and record.ttft_s is not None:
            self._ttft_ratio.observe(record.ttft_s / record.forecast_ttft_s)
            if record.forecast_tpot_s is not None and record.tpot_s is not None:
                self._tpot_ratio.observe(record.tpot_s / record.forecast_tpot_s)

    def _counted(self, record: RequestRecord, prompt_tokens: int) -> None:
        output_tokens = record.output_tokens or 0
        self._input.observe(prompt_tokens)
        self._output.observe(output_tokens)
        self._prompt.value += prompt_tokens
        self._out.value += output_tokens
        self._cached.value += record.cached_tokens or 0
        self._prefill_cached.value += record.prefill_cached_tokens or 0
        if record.prefill_s is not None:
            self._prefill.observe(record.prefill_s)
        if record.readback_tokens:
            self._read.value += record.readback_tokens
            self._read_back.value += record.readback_tokens
        if record.moved_tokens is not None:
            self._handed_over.value += record.moved_tokens
        if record.avoided_tokens is not None:
            self._avoided.value += record.avoided_tokens

    @cached_property
    def _score(self) -> Spread:
        return self._of.scores.child(self._shared[0], self._shared[2])

    @cached_property
    def _ttft_ratio(self) -> Spread:
        return self._of.ttft_ratio.child(self._shared[0], self._shared[2])

    @cached_property
    def _tpot_ratio(self) -> Spread:
        return self._of.tpot_ratio.child(self._shared[0], self._shared[2])

    @cached_property
    def _prefill(self) -> Spread:
        return self._of.prefill.child(*self._shared)

    @cached_property
    def _read_back(self) -> Count:
        return self._of.moved.child("readback", self._shared[2])

    @cached_property
    def _handed_over(self) -> Count:
        return self._of.moved.child("handover", self._shared[2])

    @cached_property
    def _avoided(self) -> Count:
        return self._of.avoided.child(self._shared[0], self._shared[2])
