"""What a discovery says becomes a fleet: at once where it adds, with care where it takes away."""

from __future__ import annotations

import math

from gateway.core.pods import Role
from gateway.core.settling import Found, Settling, SettlingRules, Standing

RULES = SettlingRules(hold_s=10.0, max_loss=0.5)
SURE = SettlingRules(hold_s=10.0, max_loss=0.5, sure_of_absence=True)


def pods(*words: str) -> list[Found]:
    """ "d1" is a decode pod, "p1" a prefill pod; "d1?" is not ready, "d1!" is leaving."""
    marks = {"?": Standing.UNREADY, "!": Standing.LEAVING}
    roles = {"d": Role.DECODE, "p": Role.PREFILL}
    return [Found(word[:2], roles[word[0]], marks.get(word[2:], Standing.READY)) for word in words]


def after(settling: Settling, now_s: float, *words: str) -> str:
    """The fleet after an answer, drained pods with a question mark."""
    settling.answer(pods(*words), now_s)
    return at(settling, now_s)


def at(settling: Settling, now_s: float) -> str:
    wanted = settling.wanted(now_s)
    return " ".join(url + "?" * (url in wanted.drained) for url in sorted(wanted.pods))


def test_what_is_ready_is_there_at_once() -> None:
    settling = Settling(RULES)
    assert after(settling, 0, "p1", "d1", "d2?", "d3!") == "d1 p1"
    assert settling.wanted(0).pods == {"p1": Role.PREFILL, "d1": Role.DECODE}
    assert settling.wanted(0).again_at == math.inf
    assert after(settling, 1, "p1", "d1", "d2") == "d1 d2 p1"


def test_what_is_missing_goes_when_it_stays_missing() -> None:
    settling = Settling(RULES)
    after(settling, 0, "d1", "d2", "d3")
    assert after(settling, 5, "d1", "d2") == "d1 d2 d3"
    assert settling.wanted(5).again_at == 15
    assert at(settling, 14.9) == "d1 d2 d3"
    assert at(settling, 15) == "d1 d2"
    assert settling.wanted(15).again_at == math.inf


def test_what_was_missing_in_one_answer_only_never_left() -> None:
    settling = Settling(RULES)
    after(settling, 0, "d1", "d2", "d3")
    after(settling, 5, "d1", "d2")
    assert after(settling, 9, "d1", "d2", "d3") == "d1 d2 d3"
    assert after(settling, 12, "d1", "d2") == "d1 d2 d3"
    assert at(settling, 21.9) == "d1 d2 d3", "ten seconds from when it was missed last"
    assert at(settling, 22) == "d1 d2"


def test_a_source_that_is_sure_takes_pods_away_at_once() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1", "d2", "d3")
    assert after(settling, 5, "d1", "d2") == "d1 d2"


def test_a_pod_that_is_leaving_goes_at_once_however_many_they_are() -> None:
    settling = Settling(RULES)
    after(settling, 0, "d1", "d2")
    assert after(settling, 1, "d1!", "d2!") == ""
    assert settling.wanted(1).doubt is None


def test_a_pod_that_is_not_ready_is_drained_and_stays() -> None:
    settling = Settling(RULES)
    after(settling, 0, "d1", "d2", "d3")
    assert after(settling, 1, "d1", "d2", "d3?") == "d1 d2 d3?"
    assert at(settling, 1000) == "d1 d2 d3?"
    assert after(settling, 1001, "d1", "d2", "d3") == "d1 d2 d3"


def test_a_loss_of_most_pods_is_believed_only_when_it_lasts() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1", "d2", "d3", "d4")
    assert after(settling, 5, "d1") == "d1 d2 d3 d4"
    assert settling.wanted(5).doubt == "3 of 4 pods would be lost"
    assert settling.wanted(5).again_at == 15
    assert after(settling, 14, "d1") == "d1 d2 d3 d4", "the same again is no news"
    assert at(settling, 15) == "d1"
    assert settling.wanted(15).doubt is None


def test_an_empty_answer_empties_the_fleet_only_when_it_lasts() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1")
    assert after(settling, 1) == "d1"
    assert after(settling, 2, "d1") == "d1"
    assert settling.wanted(2).doubt is None
    assert after(settling, 5) == "d1"
    assert at(settling, 14.9) == "d1"
    assert at(settling, 15) == ""


def test_all_pods_unready_at_once_is_doubted_too() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1", "d2")
    assert after(settling, 1, "d1?", "d2?") == "d1 d2"
    assert at(settling, 11) == "d1? d2?"
    assert after(settling, 12, "d1", "d2?") == "d1 d2?"


def test_one_after_the_other_is_a_loss_of_many_too() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1", "d2", "d3", "d4")
    assert after(settling, 1, "d1", "d2", "d3?", "d4?") == "d1 d2 d3? d4?", "half of them is not more than half"
    assert settling.wanted(50).doubt is None
    assert after(settling, 60, "d1", "d2?", "d3?", "d4?") == "d1 d2 d3? d4?"
    assert after(settling, 65, "d1?", "d2?", "d3?", "d4?") == "d1 d2 d3? d4?"
    assert at(settling, 70) == "d1? d2? d3? d4?"
    assert settling.wanted(70).doubt is None


def test_new_pods_come_in_while_a_loss_is_doubted() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1", "d2")
    assert after(settling, 1, "d3", "d4") == "d1 d2 d3 d4"
    assert at(settling, 11) == "d3 d4"


def test_a_pod_that_flaps_must_be_well_for_a_while() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1", "d2", "d3")
    after(settling, 1, "d1", "d2", "d3?")
    assert after(settling, 2, "d1", "d2", "d3") == "d1 d2 d3", "once is no flapping"
    after(settling, 3, "d1", "d2", "d3?")
    assert after(settling, 4, "d1", "d2", "d3") == "d1 d2 d3?"
    assert settling.wanted(4).again_at == 14
    assert at(settling, 14) == "d1 d2 d3"


def test_a_pod_that_comes_and_goes_does_not_come_back_at_once() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1", "d2", "d3")
    after(settling, 1, "d1", "d2")
    assert after(settling, 2, "d1", "d2", "d3") == "d1 d2 d3"
    assert after(settling, 3, "d1", "d2") == "d1 d2"
    assert after(settling, 4, "d1", "d2", "d3") == "d1 d2"
    assert at(settling, 14) == "d1 d2 d3"


def test_flapping_is_forgotten() -> None:
    settling = Settling(SURE)
    after(settling, 0, "d1", "d2", "d3")
    for now_s in (1, 3):
        after(settling, now_s, "d1", "d2", "d3?")
        after(settling, now_s + 1, "d1", "d2", "d3")
    assert at(settling, 104) == "d1 d2 d3"
    after(settling, 105, "d1", "d2", "d3?")
    assert after(settling, 106, "d1", "d2", "d3") == "d1 d2 d3"
    at(settling, 300)
    assert settling._lapses == {}


def test_a_pod_may_change_its_role() -> None:
    settling = Settling(RULES)
    settling.answer([Found("a", Role.DECODE)], 0)
    settling.wanted(0)
    settling.answer([Found("a", Role.PREFILL), Found("a", Role.DECODE)], 1)
    assert settling.wanted(1).pods == {"a": Role.PREFILL}, "of a pod named twice the first counts"


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    settling = Settling(SURE)
    for number in range(50):
        after(settling, number, "d0", f"d{number % 10}", "p1")
    after(settling, 60, "d0", "p1")
    after(settling, 500, "d0", "p1")
    assert at(settling, 500) == "d0 p1"
    assert set(settling._ready_since) == {"d0", "p1"}
    assert not settling._missing_since
    assert not settling._lapses
