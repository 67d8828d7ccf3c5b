"""What passes, what does not, and what says nothing."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from zdiloco.bench.printing import WIDTH, print_results
from zdiloco.bench.results import Result

SPEED = Result(name="alone", ours=19.5, reference=20.0, unit="steps/s", better="higher", bound=0.97)
PAUSE = Result(name="pause", ours=2.0, reference=50.0, unit="ms", better="lower", bound=0.05)


@pytest.mark.parametrize(
    ("result", "faults"),
    [
        (SPEED, ()),
        (replace(SPEED, ours=19.0), ("alone: 0.950, at least 0.97 is asked for",)),
        (PAUSE, ()),
        (replace(PAUSE, ours=3.0), ("pause: 0.060, at most 0.05 is asked for",)),
        (replace(PAUSE, missed=("too long",)), ("pause: too long",)),
        (replace(SPEED, void="nothing happened"), ("alone is void: nothing happened",)),
        (replace(SPEED, ours=1.0, bound=None, void="nothing happened"), ()),
    ],
)
def test_bars(result: Result, faults: tuple[str, ...]) -> None:
    assert result.faults == faults
    assert result.to_obj()["passed"] is not bool(faults)


def test_json_says_whether_it_counts() -> None:
    found = replace(SPEED, void="nothing happened", details={"rounds": 3}).to_obj()
    assert (found["counts"], found["ratio"], found["rounds"]) == (False, 0.975, 3)
    assert SPEED.to_obj()["counts"] is True


def test_the_table_says_what_is_void_and_what_failed() -> None:
    out = io.StringIO()
    results = [SPEED, replace(PAUSE, ours=3.0, remark="ten times"), replace(SPEED, name="x", void="nothing happened")]
    print_results(results, Console(file=out, width=WIDTH, soft_wrap=True))
    rows = [row.split() for row in out.getvalue().splitlines()]
    assert rows[1] == ["alone", "19.500", "20.000", "steps/s", "0.975", "≥", "0.97", "ok"]
    assert rows[2][-1] == "FAILED"
    assert "VOID" in rows[3]
    assert "pause: ten times" in out.getvalue().splitlines()
    assert out.getvalue().splitlines()[-1] == "not met     x is void: nothing happened"
