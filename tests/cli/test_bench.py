"""`zdiloco bench overhead`: standard output holds the figures and nothing else; the exit code is their verdict."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from zdiloco.bench import overhead
from zdiloco.bench.overhead import Plan
from zdiloco.bench.results import Result
from zdiloco.bench.stage import BenchFailed
from zdiloco.cli import signals
from zdiloco.cli.main import run

GOOD = Result(name="alone", ours=19.5, reference=20.0, unit="steps/s", better="higher", bound=0.97)


def measures(monkeypatch: pytest.MonkeyPatch, *results: Result) -> list[Plan]:
    plans: list[Plan] = []

    def measure(plan: Plan) -> Iterator[Result]:
        plans.append(plan)
        yield from results

    monkeypatch.setattr(overhead, "measure", measure)
    monkeypatch.setattr(signals, "interrupt_on_any", lambda: None)
    return plans


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plans = measures(monkeypatch, GOOD)
    assert run(["bench", "overhead", "--json", "--steps", "60"]) == 0
    assert json.loads(capsys.readouterr().out) == {"results": [GOOD.to_obj()]}
    assert plans == [Plan(steps=60)]


@pytest.mark.parametrize("bad", [replace(GOOD, ours=19.0), replace(GOOD, void="nothing happened")])
def test_a_bar_that_is_missed_and_a_void_figure_are_exit_code_1(
    bad: Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measures(monkeypatch, GOOD, bad)
    assert run(["bench", "overhead"]) == 1
    assert f"not met     {bad.faults[0]}" in capsys.readouterr().out
    assert run(["bench", "overhead", "--json"]) == 1
    said = capsys.readouterr()
    assert len(json.loads(said.out)["results"]) == 2
    assert bad.faults[0] in said.err


def test_a_measurement_that_breaks_off_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(plan: Plan) -> Any:
        raise BenchFailed("b ended with 1: its last words")

    measures(monkeypatch)
    monkeypatch.setattr(overhead, "measure", measure)
    assert run(["bench", "overhead", "--json"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "zdiloco: b ended with 1: its last words\n")


@pytest.mark.parametrize("option", ["--steps", "--parameters", "--times"])
def test_senseless_plans_are_one_line_and_2(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "overhead", option, "0"]) == 2
    assert capsys.readouterr().err.startswith(f"zdiloco: {option} is 0; allowed is ")
