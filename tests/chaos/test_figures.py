"""Returns and pauses from what was written: phases add up, and who was disturbed himself is no survivor."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.test_chronicle import Written, merge
from zdiloco.chaos.chronicle import Chronicle
from zdiloco.chaos.director import Done
from zdiloco.chaos.figures import pauses_of, returns_of, told
from zdiloco.chaos.script import SYNCER, Deed, Kind


def done(kind: Kind, whom: tuple[str, ...], times: tuple[float, float, float], **back: float) -> Done:
    """Began, healed and settled at these times."""
    deed = Deed(number=1, kind=kind, whom=whom, pause_s=0.0)
    return Done(deed, began_at=times[0], healed_at=times[1], settled_at=times[2], back=back)


def test_phases_of_returns(tmp_path: Path) -> None:
    written, chronicle = Written(tmp_path), Chronicle(tmp_path)
    written.line(10.2, "start")
    written.line(11.2, "opened")
    written.line(11.5, "joined", who="a", incarnation="2")
    written.line(12.0, "arrived", who="a")
    written.line(12.25, "merge", **merge("b", "1"))
    written.line(12.5, "merge", **merge("a", "2"))
    chronicle.look()
    both = done(Kind.KILL_BOTH, (SYNCER, "a"), (9.0, 10.5, 13.0), **{SYNCER: 10.0, "a": 10.5})
    syncer, learner = returns_of([both], chronicle)
    assert syncer.phases == pytest.approx({"opens files and ports": 0.2, "hears the fleet": 1.0, "merges": 1.05})
    assert learner.phases == pytest.approx({"is welcome": 1.0, "trains and sends": 0.5, "is merged": 0.5})
    assert (syncer.seconds, learner.seconds) == pytest.approx((2.25, 2.0))
    assert told([learner]).startswith("1 times, median / p90 / max in s: all 2.00 / 2.00 / 2.00, is welcome 1.00")


def test_only_what_was_let_come_to_rest_is_a_return(tmp_path: Path) -> None:
    written, chronicle = Written(tmp_path), Chronicle(tmp_path)
    written.line(11.0, "joined", who="a", incarnation="2")
    written.line(12.0, "merge", **merge("a", "2"))
    chronicle.look()
    cut_short = done(Kind.KILL_LEARNER, ("a",), (9.0, 10.0, 0.0), a=10.0)
    assert returns_of([cut_short], chronicle) == []
    untold = done(Kind.KILL_LEARNER, ("a",), (9.0, 10.0, 10.5), a=10.0)  # the journal's lines have died
    assert returns_of([untold], chronicle) == []
    assert told([]) == "none"


def notes(folder: Path, name: str, *lines: tuple[float, list[int]]) -> None:
    """Each line: when it was written, and the calls in it [us]; every step takes 100 ms."""
    folder.mkdir(exist_ok=True)
    records: list[dict[str, Any]] = [{"t": 0.0, "kind": "start"}]
    records += [{"t": t, "kind": "steps", "call_us": us, "step_us": [100_000] * len(us)} for t, us in lines]
    text = "\n".join(map(json.dumps, records)) + '\n{"t": 9'
    (folder / f"{name}-1.jsonl").write_text(text)


def test_pauses_of_those_who_were_left_alone(tmp_path: Path) -> None:
    learners = tmp_path / "learners"
    notes(learners, "a", (1.0, [1000, 2000]), (5.1, [5000, 9000]), (8.0, [90_000]))
    notes(learners, "b", (1.0, [1500]), (5.1, [99_000]))
    kill = done(Kind.KILL_LEARNER, ("b",), (4.0, 5.0, 6.0), b=5.0)
    found = pauses_of(tmp_path, [kill], quiet=(0.5, 1.5))
    assert found is not None
    assert found.calls == 2, "b was killed itself, and the last call of a is after it"
    assert (found.control, found.raw_longest, found.longest) == pytest.approx((0.02, 0.09, 0.07))
    assert pauses_of(tmp_path, [], quiet=(0.5, 1.5)) is None
    assert pauses_of(tmp_path, [kill], quiet=(20.0, 30.0)) is None
