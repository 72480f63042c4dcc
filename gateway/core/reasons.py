"""Why a request went where it went, as one word of a small closed set.

Rule of this room: the word is chosen where the plan is made, never read out of the text for people. A new rule of
routing gets a word here, and a line in docs/metrics.md comes with it.
"""

from __future__ import annotations

import enum


class ReasonClass(enum.StrEnum):
    """What decided. The text of `Plan.reason` says the rest."""

    SCORE = "score"
    TIE = "tie"
    DEGRADED = "degraded"
    EXPLORED = "explored"
    POLICY = "policy"
    FIRST_TURN = "first_turn"
    COLD = "cold"
    BRANCH = "branch"
    RESTARTED = "restarted"
    POD_DOWN = "pod_down"
    DRAINING = "draining"
    DIRECT_OFF = "direct_off"
    FULL = "full"
    MOVED = "moved"
    REPLICA = "replica"
    WHOLE = "whole"
    PINNED = "pinned"
    NO_PREFILL = "no_prefill"
    FALLBACK = "fallback"
    OTHER = "other"


MEANINGS = {
    ReasonClass.SCORE: "the measured table's S, outside its noise",
    ReasonClass.TIE: "S inside its noise: the conversation's last route stays",
    ReasonClass.DEGRADED: "an arm of the table's cell fails too often to compete",
    ReasonClass.EXPLORED: "the other route, so that it stays measured (`drift.explore`)",
    ReasonClass.POLICY: "a policy that looks at no table (`pd`, `local`, `readback`, `threshold`, `queue`)",
    ReasonClass.FIRST_TURN: "turn 1: nothing can be resident",
    ReasonClass.COLD: "a later turn of which nothing, or too little, is resident",
    ReasonClass.BRANCH: "an edited or regenerated turn that shares too little with what is resident",
    ReasonClass.RESTARTED: "the decode pod that had the conversation was restarted",
    ReasonClass.POD_DOWN: "the decode pod that had the conversation is down, or its breaker is open",
    ReasonClass.DRAINING: "the pod that has the conversation is being drained",
    ReasonClass.DIRECT_OFF: "the self-test of the pod that has the conversation speaks against going there straight",
    ReasonClass.FULL: "the decode pod has `decode_max_in_flight` requests",
    ReasonClass.MOVED: "another decode pod is so much less busy that moving there pays (`load_aware`)",
    ReasonClass.REPLICA: "a replica: the one that holds the conversation, or the least loaded pod",
    ReasonClass.WHOLE: "the request does not survive a hand-over",
    ReasonClass.PINNED: "what it goes on from is in that pod's memory (`previous_response_id`)",
    ReasonClass.NO_PREFILL: "no prefill pod is up",
    ReasonClass.FALLBACK: "the plan before it failed",
    ReasonClass.OTHER: "none of these",
}
