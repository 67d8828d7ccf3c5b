"""Whether a figure counts: read from lines of a journal."""

import pytest

from zdiloco.bench.rounds import Rounds, open_calls, rounds_within


def line(called_at: float, fragment: int, *names: str, epoch: int = 1) -> dict[str, object]:
    """A round that was called at this moment and closed 0.3 s later."""
    members = [[name, "00", 24, 1000] for name in names]
    return {
        "kind": "merge", "t": called_at + 0.3, "quorum_s": 0.1, "grace_s": 0.2, "epoch": epoch, "fragment": fragment,
        "members": members,
    }  # fmt: skip


def test_rounds_are_counted_by_when_they_were_called() -> None:
    journal = [line(0.9, 0, "b"), line(1.0, 1, "a"), line(1.9, 2, "a", "b"), line(2.1, 0, "b"), {"kind": "end"}]
    found = rounds_within(journal, "a", [(1.0, 2.0)], 0.05, [])
    assert (found.opened, found.with_us, found.others_tokens) == (2, 2, 1000)
    assert found.apart_steps is None


def test_a_round_that_never_closed_counts_as_opened_without_us() -> None:
    found = rounds_within([line(1.0, 0, "a")], "a", [(1.0, 2.0)], 0.05, [1.5, 2.5])
    assert (found.opened, found.with_us) == (2, 1)


def test_the_distance_between_calls_is_told_in_steps() -> None:
    journal = [line(t, fragment, "a") for t in (1.0, 2.2, 3.5) for fragment in (0, 1)]
    found = rounds_within(journal, "a", [(0.0, 9.0)], 0.05, [])
    assert found.apart_steps == pytest.approx(25.0)


def test_no_distance_is_measured_from_one_span_or_epoch_to_another() -> None:
    journal = [line(1.0, 0, "a"), line(2.0, 0, "a", epoch=2), line(5.0, 0, "a", epoch=2), line(6.3, 0, "a", epoch=2)]
    found = rounds_within(journal, "a", [(0.0, 3.0), (4.0, 7.0)], 0.05, [])
    assert found.apart_steps == pytest.approx(26.0)


@pytest.mark.parametrize(
    ("opened", "with_us", "apart", "why"),
    [
        (100, 95, 26.0, ""),
        (100, 94, 25.0, "94 of 100 rounds"),
        (100, 100, 26.1, "26.1 steps apart"),
        (100, 100, None, "no fragment was called twice"),
        (0, 0, None, "no round"),
    ],
)
def test_a_figure_is_void_for_a_reason(opened: int, with_us: int, apart: float | None, why: str) -> None:
    said = Rounds(opened=opened, with_us=with_us, apart_steps=apart, others_tokens=0).void(24)
    assert why in said
    assert bool(why) == bool(said)


def test_open_rounds_are_those_that_gather() -> None:
    states = ("open", "merging", "parked")
    fragments = [{"round": None}, *({"round": {"state": state, "age_s": 2.0}} for state in states)]
    assert open_calls({"fragments": fragments}, 10.0) == [8.0, 8.0]
    assert open_calls({}, 10.0) == []
