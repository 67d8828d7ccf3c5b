"""Recorded answers are found by the moment of a call; what was never answered is answered as usual."""

from zdiloco import trace
from zdiloco.lives import parts_of
from zdiloco.whatif.answers import Answer, Answers, nearest

TOLD = [
    trace.Call(t=1.0, fragment=0, version=1),
    trace.Arrived(t=1.5, who="a", fragment=0, version=1, answer_s=0.4999999, offer_s=0.1, cut_step=7, nbytes=10),
    trace.Declined(t=1.25, who="b", fragment=0, version=1, reason="uplink busy"),
    trace.Arrived(t=3.0, who="b", fragment=0, version=1, nbytes=20),
    trace.Published(t=2.0, fragment=0, version=1, sync_s=0.25),
    trace.Adopted(t=2.5, who="a", fragment=0, version=1),
    trace.Call(t=11.0, fragment=0, version=2),
    trace.Arrived(t=12.0, who="a", fragment=0, version=2, answer_s=1.0),
    trace.Arrived(t=12.5, who="a", fragment=0, version=2, answer_s=1.5),
    trace.Arrived(t=12.5, who="c", fragment=0, version=9),
]


def answers() -> Answers:
    (part,) = parts_of(TOLD)
    return Answers(part)


def test_the_nearest_call_of_the_same_fragment_counts() -> None:
    found = answers()
    first = found.of("a", 0, 5.9)
    assert (first.answer_s, first.offer_s, first.cut_at, first.declined_s) == (0.5, 0.1, (1.1, 7), None)
    assert found.of("a", 0, 6.1) == Answer(answer_s=1.0), "the first that came"
    late = Answer(declined_s=0.25, reason="uplink busy", answer_s=2.0)
    assert found.of("b", 0, 99.0) == late, "declined, and answered after all"


def test_who_never_answered_a_fragment_is_like_elsewhere_and_else_like_the_others() -> None:
    found = answers()
    assert found.of("a", 3, 99.0) == Answer(answer_s=1.0)
    assert found.of("c", 0, 1.0) == Answer(answer_s=1.0), "the median of all; nobody knows when version 9 was called"
    assert Answers(parts_of([trace.Start(t=0.0)])[0]).of("a", 0, 1.0) == Answer(answer_s=0.0)


def test_merges_adoptions_and_sizes() -> None:
    found = answers()
    assert (found.sync_s(0, 9.0), found.sync_s(5, 9.0)) == (0.25, 0.25)
    assert (found.adoption_s("a"), found.adoption_s("b")) == (0.5, 0.0)
    assert (found.nbytes(0), found.nbytes(1)) == (20, 0)


def test_nearest() -> None:
    moments = [(1.0, "a"), (2.0, "b"), (4.0, "c")]
    assert [nearest(moments, at) for at in (-9.0, 1.4, 1.6, 2.9, 3.1, 99.0)] == ["a", "a", "b", "b", "c", "c"]
