"""The report says what the run folder holds; its figures can be checked by hand."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.demo.finished import Finished
from zdiloco.core.ledger import Fates
from zdiloco.demo import report as reports
from zdiloco.demo.outcome import Outcome, named_values
from zdiloco.demo.report import Report, data_parallel_bytes, fastest_steps, gather, goodput, merged_after

TOOLS_READ = {"loss_before", "loss_after", "ledger", "goodput", "learners", "run_dir"}


@pytest.fixture
def gathered(finished: Finished, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> Report:
    def judge(params: object, values: dict[str, torch.Tensor], steps: int) -> Outcome:
        assert values.keys() == dict(finished.model.named_parameters()).keys()
        assert steps == 20
        return outcome

    monkeypatch.setattr(reports, "judge", judge)
    return gather(finished.story, finished.rounds)


def test_every_process_has_its_row(gathered: Report) -> None:
    rows = [(row.name, row.fate, row.steps, row.rounds, row.seconds) for row in gathered.learners]
    assert rows == [
        ("a", "finished", 20, 4, 20.0), ("b", "killed", 6, 2, 20.0), ("b", "returned", 5, 2, 5.0),
        ("c", "finished", 8, 2, 8.0),
    ]  # fmt: skip
    a, b = gathered.learners[:2]
    assert a.fates == pytest.approx((200, 180, 0, 0, 0, 20))
    assert b.fates == pytest.approx((60, 40, 0, 20, 0, 0))
    assert (a.bytes_up, a.bytes_down) == (1000, 2000)
    assert a.pauses is not None
    assert (a.pauses.step_s, a.pauses.p99_s) == (1.0, 0.01)


def test_the_whole_run_is_summed(gathered: Report) -> None:
    assert gathered.rounds == 4
    assert gathered.mean_participants == 2.5
    assert gathered.ledger == pytest.approx((390, 330, 0, 20, 0, 40))
    assert gathered.ledger_fragments == ((390, 330, 0, 20, 0, 40),) * 2
    assert (gathered.bytes_up, gathered.bytes_down) == (4000, 8000)
    assert gathered.parameters == 4 * 3 + 3 + 3 * 2 + 2
    assert gathered.data_parallel_bytes == 8 * 2 * 23 * 20
    assert gathered.times_fewer == pytest.approx(8 * 2 * 23 * 20 / 12_000)
    assert gathered.goodput == pytest.approx((20 * 0.9 + 20 * 40 / 60 + 5 * 0.6 + 8 * 1.0) / 53)
    assert gathered.training_seconds == 30.0


def test_every_claim_is_checked(gathered: Report) -> None:
    assert [check.passed for check in gathered.checks] == [True] * 6
    assert gathered.passed
    figures = " | ".join(check.figure for check in gathered.checks)
    assert "a 90, c 80" in figures
    assert "tokens merged: 30" in figures
    assert "8 accounts" in figures


def test_json_holds_what_tools_read_and_can_be_read_back(gathered: Report) -> None:
    obj = json.loads(json.dumps(gathered.to_obj(), allow_nan=False))
    assert obj.keys() >= TOOLS_READ
    assert obj["ledger"].keys() == set(Fates._fields)
    terms = sum(value for word, value in obj["ledger"].items() if word != "trained")
    assert terms == pytest.approx(obj["ledger"]["trained"])
    assert obj["passed"] is True
    assert {"name", "steps", "trained", "merged", "lost", "rounds"} <= obj["learners"][0].keys()
    assert obj["run_dir"] == str(gathered.run_dir)


def test_a_model_that_was_ruined_is_still_json(gathered: Report) -> None:
    ruined = replace(gathered, outcome=replace(gathered.outcome, loss_after=math.nan))
    assert json.loads(json.dumps(ruined.to_obj(), allow_nan=False))["loss_after"] is None


def test_without_a_kill_nothing_was_merged_after_it(finished: Finished, outcome: Outcome, monkeypatch: Any) -> None:
    monkeypatch.setattr(reports, "judge", lambda *_: outcome)
    finished.story.killed_at = finished.story.returned_at = 0.0
    found = gather(finished.story, finished.rounds)
    checks = {check.name: check.passed for check in found.checks}
    assert found.passed
    assert checks["survivors were merged after the kill of b"] is None
    assert checks["b was merged after its return"] is None


def test_a_run_that_left_no_time_for_the_return_is_not_judged_by_it(
    finished: Finished, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "judge", lambda *_: replace(outcome, lone=None, why_no_lone="too short"))
    finished.story.killed_at, finished.story.returned_at = 145.0, 147.0
    found = gather(finished.story, [line for line in finished.rounds if line["t"] < 145])
    verdicts = {check.name: check.passed for check in found.checks}
    assert verdicts["b was merged after its return"] is None
    assert verdicts["and is no worse than one learner alone"] is None
    assert found.to_obj()["lone"] is None
    finished.story.returned_at = 130.0  # 20 s before the end: enough
    found = gather(finished.story, [line for line in finished.rounds if line["t"] < 145])
    assert {check.name: check.passed for check in found.checks}["b was merged after its return"] is False


def test_a_journal_that_says_otherwise_fails_the_ledger(
    finished: Finished, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "judge", lambda *_: outcome)
    found = gather(finished.story, finished.rounds[:-1])
    assert [check.name for check in found.checks if not check.passed] == ["the ledger balances"]
    assert not found.passed


def test_values_come_by_name(finished: Finished) -> None:
    values = named_values(reports.read_cut(finished.run_dir), finished.layout)
    for name, parameter in finished.model.named_parameters():
        assert torch.equal(values[name], parameter)


def test_a_ring_moves_twice_the_data_less_one_part() -> None:
    # three members, 10 parameters: each sends 2 * 2/3 of 20 bytes a step, and receives as much
    assert data_parallel_bytes(10, 3, 5) == pytest.approx(3 * 2 * (2 * 2 / 3) * 20 * 5)
    assert data_parallel_bytes(10, 1, 5) == 0


def test_processes_of_one_learner_belong_together() -> None:
    assert fastest_steps([("a", 10), ("b", 6), ("b", 5)]) == 11
    assert fastest_steps([]) == 0


def test_goodput_is_a_share_of_time() -> None:
    fates = Fates(trained=100, merged=50, unmerged=0, lost=50, dropped=0, left=0)
    idle = Fates(trained=0, merged=0, unmerged=0, lost=0, dropped=0, left=0)
    assert goodput([(10.0, fates)]) == 0.5
    assert goodput([(10.0, fates), (10.0, idle)]) == 0.25
    assert goodput([]) == 0.0


def test_only_rounds_after_the_moment_count(finished: Finished) -> None:
    key = f"{10:016x}"
    shares = (0.75, 0.25)
    assert merged_after(finished.rounds, key, 0.0, shares) == 180
    assert merged_after(finished.rounds, key, 110.0, shares) == 90
    assert merged_after([line for line in finished.rounds if line["fragment"]], key, 110.0, shares) == 22.5
    assert merged_after(finished.rounds, key, math.inf, shares) == 0
