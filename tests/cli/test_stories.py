"""`zdiloco simulate --scenario` and `--chaos`: what is played, told and written, and one line for what cannot be."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zdiloco import trace
from zdiloco.cli.main import run
from zdiloco.errors import MachineError
from zdiloco.sim import audit, shrink
from zdiloco.sim.chaos import chaos
from zdiloco.sim.play import play
from zdiloco.sim.stories import asked_for
from zdiloco.sim.transcript import scenario_from_text
from zdiloco.strip import chart_of
from zdiloco.trace import read_trace

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "outages.txt"
SMALL = "world seed=2 seconds=4 sync.sync_period=10\nlearner a step_s=0.1\nlearner b step_s=0.1\n"


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is said of the example; its trace is written."""
    path, out = tmp_path_factory.mktemp("story") / "a.jsonl", io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["simulate", "--scenario", str(EXAMPLE), "--trace", str(path), "--json"]) == 0
    return dict(json.loads(out.getvalue()))


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert run(["simulate", *words, "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def test_a_story_is_told(example: dict[str, Any]) -> None:
    (told,) = example["scenarios"]
    assert example["failed"] is None
    assert told["faults"] == {"stop": 1, "kill": 1, "cut_region": 1, "crash": 1}
    assert told["branches"]["recovered"] == 1
    assert told["branches"]["rounds"] == told["rounds"] > 30
    assert 0.5 < told["goodput"] < 1
    tokens = told["tokens"]
    fates = sum(tokens[fate] for fate in ("merged", "unmerged", "lost", "dropped", "left"))
    assert fates == pytest.approx(tokens["trained"])
    assert 0 < tokens["lost"] < tokens["merged"], "what the killed one held"


def test_a_story_is_told_to_people(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story.write_text(SMALL + "at 2 stop a for 0.5\n")
    (told,) = answer(capsys, "--scenario", str(story))["scenarios"]
    assert run(["simulate", "--scenario", str(story)]) == 0
    said = capsys.readouterr().out
    assert f"{100 * told['tokens']['unmerged'] / told['tokens']['trained']:.2f}" in said
    assert f"{told['goodput']:.3f}" in said
    assert " 1  fault stop\n" in said
    assert said.splitlines()[-1].startswith("every rule held, looked at after each of ")
    assert all(len(line) <= 130 for line in said.splitlines())


def test_its_trace_says_what_was_done_and_what_followed(example: dict[str, Any]) -> None:
    records = read_trace(Path(example["trace"]))
    faults = [(record.t, record.who, record.what) for record in records if isinstance(record, trace.Fault)]
    assert faults == [
        (4, "e1", "stop for 2 s"), (8, "w0", "kill for 3 s"), (13, "west", "cut_region for 4 s"),
        (19, "syncer", "crash for 1 s"),
    ]  # fmt: skip
    kinds = {(type(record), record.who) for record in records}
    assert kinds >= {
        (trace.Stopped, "e1"), (trace.Continued, "e1"), (trace.Killed, "w0"), (trace.Returned, "w0"),
        (trace.Killed, "syncer"), (trace.End, "syncer"),
    }  # fmt: skip
    assert [record.t for record in records if isinstance(record, trace.Killed) and record.who == trace.SYNCER] == [19]
    chart = chart_of(records)
    strips = {strip.name: strip for strip in chart.strips}
    assert chart.faults == faults
    assert [strip.label for strip in chart.strips] == ["e0 (east)", "e1 (east)", "w0 (west)", "w1 (west)"]
    assert strips["w1"].silent[0] == pytest.approx((13, 17), abs=1.5), "its region was cut off"
    assert strips["e1"].silent == [pytest.approx((4, 6), abs=0.1)], "a step is 0.1 s"
    assert strips["w0"].dead[0] == pytest.approx((8, 11))
    assert all(len(strip.merged) > 10 for strip in chart.strips)
    assert chart.starts == [0, 20]


@pytest.mark.slow
def test_its_trace_is_reported_and_decided_again(example: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", example["trace"], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (told,) = example["scenarios"]
    assert {name: report[name] for name in ("rounds", "goodput", "uptime")} == {
        name: told[name] for name in ("rounds", "goodput", "uptime")
    }
    assert run(["whatif", example["trace"], "--min-quorum", "4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["what"] for row in rows] == ["recorded", "decided again", "what if"]
    assert rows[0]["rounds"] == told["rounds"]
    assert abs(rows[1]["rounds"] - rows[0]["rounds"]) <= 0.1 * rows[0]["rounds"]
    assert rows[2]["rounds"] < rows[1]["rounds"], "a quorum of all four waits for those that are away"


@pytest.mark.slow
def test_the_same_seed_is_the_same_trace_byte_for_byte(story: Path) -> None:
    story.write_text(SMALL + "learner c step_s=0.1 jitter=0.3 loss=0.05\nat 2 kill a for 0.5\n")
    traces = []
    for number, seed in enumerate(("2", "2", "3")):
        path = story.with_name(f"{number}.jsonl")
        assert run(["simulate", "--scenario", str(story), "--seed", seed, "--trace", str(path)]) == 0
        traces.append(path.read_bytes())
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


@pytest.mark.slow
def test_the_order_of_sets_changes_nothing(tmp_path: Path) -> None:
    """A process whose sets of strings have another order."""
    words = ["simulate", "--chaos", "1", "--seed", "7", "--trace"]
    assert run([*words, str(tmp_path / "1")]) == 0
    order = {"PYTHONHASHSEED": "12345" if os.environ.get("PYTHONHASHSEED") != "12345" else "54321"}
    command = [sys.executable, "-m", "zdiloco.cli", *words, str(tmp_path / "2")]
    subprocess.run(command, env={**os.environ, **order}, check=True, timeout=200, capture_output=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_seeds_of_a_story_and_of_chaos(story: Path) -> None:
    assert [each.seed for each in asked_for(story, None, [])] == [2]
    assert [each.seed for each in asked_for(story, None, [1, 4, 5])] == [1, 4, 5]
    assert list(asked_for(None, 2, [])) == [chaos(0), chaos(1)]
    assert list(asked_for(None, 2, [7])) == [chaos(7), chaos(8)]


@pytest.mark.slow
def test_a_broken_rule_is_1_and_its_story_can_be_kept(
    story: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule is broken by asking too much: no round may stay open at all, once everything is healed."""
    monkeypatch.setattr(audit, "OPEN_MOST_S", 0.0)
    monkeypatch.setattr(shrink, "MOST_TRIES", 5)
    words = ["--scenario", str(story), "--seed"]
    place = story.with_suffix(".jsonl")
    assert run(["simulate", *words, "3", "--trace", str(place)]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert "BROKEN with seed 3 at " in said.out
    before, keep, transcript = said.out.partition(shrink.KEEP)
    assert keep
    assert "every rule held" not in before
    scenario = scenario_from_text(transcript)
    with pytest.raises(MachineError, match="a round stays open"):
        play(scenario)
    assert isinstance(read_trace(place)[-1], trace.End), "up to where it broke"
    found = answer(capsys, "--scenario", str(story), "--seeds", "3,4", code=1)
    assert [each["seed"] for each in found["scenarios"]] == [3], "nothing is played after it"
    assert found["failed"]["rule"] == "a round stays open"
    assert found["failed"]["transcript"].strip() == transcript.strip()


def test_what_was_expected_and_did_not_occur_is_1(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story.write_text(SMALL + "expect fenced 1\n")
    assert run(["simulate", "--scenario", str(story)]) == 1
    assert "expected: 'fenced' occurred 0 times, 1 were expected" in capsys.readouterr().out


WRONG = [
    ("world sync.min_quorum=3", "STORY: sync.min_quorum is 3, but there are 2 learners: no round could ever close"),
    ("learner c loss=-0.1", "STORY: line 4 of the transcript: learner c: loss is -0.1; allowed is 0 to 0.9"),
    ("learner c up_bytes_s=-5", "STORY: line 4 of the transcript: learner c: up_bytes_s is -5; allowed is 0.001 to"),
    ("learner c step_s=nan", "STORY: line 4 of the transcript: learner c: step_s is nan; allowed is 1e-06 to"),
    ("learner a", "STORY: two learners are named 'a'; each needs a name of its own"),
    ("world seed=4", "STORY: line 4 of the transcript does not parse: 'world seed=4' ('seed' comes twice)"),
    ("world fragments=0", "STORY: world: fragments is 0; allowed is 1 to 511, a whole number"),
    ("world sync.gama=1", "STORY: sync has no key 'gama'; did you mean 'gamma'?"),
    ("world sync.gamma=x", "STORY: sync.gamma is 'x'; expected a number"),
    ("world sync.min_quorum=1.5", "STORY: sync.min_quorum is 1.5; expected a whole number"),
    ("world sync.gamma=nan", "STORY: sync.gamma is nan; allowed is 0 to 1"),
    ("world learner.codec=7", "STORY: learner.codec is 7; expected a word"),
    ("at 3 explode a", "STORY: line 4 of the transcript: no fault is called 'explode'"),
    ("at 3 kill z", "STORY: fault kill at 3 s: 'z' is no learner"),
    ("at -3 kill a", "STORY: line 4 of the transcript: fault kill: at_s is -3.0; allowed is 0 to"),
    ("at 3 cut_region east", "STORY: fault cut_region at 3 s: 'east' is no region"),
    ("at", "STORY: line 4 of the transcript does not parse: 'at'"),
    ("learner", "STORY: line 4 of the transcript does not parse: 'learner'"),
    ("expect rounds", "STORY: line 4 of the transcript does not parse: 'expect rounds'"),
    ("\xff", "the scenario STORY is no text: byte 85 is not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "says"), WRONG, ids=[repr(line) for line, _ in WRONG])
def test_a_story_that_cannot_be_is_one_line_and_2(
    line: str, says: str, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.write_bytes((SMALL + line + "\n").encode("latin-1"))
    assert run(["simulate", "--scenario", str(story)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"zdiloco: {says.replace('STORY', str(story))}")
    assert said.err.count("\n") == 1


USAGE = [
    (["--scenario", "FOLDER"], "cannot read the scenario FOLDER: Is a directory"),
    (["--scenario", "FOLDER/none"], "cannot read the scenario FOLDER/none: No such file or directory"),
    (["--scenario", "STORY", "--seeds", "1,2,1"], "--seeds is '1,2,1': 1 comes twice"),
    (["--scenario", "STORY", "--seeds", "x"], "--seeds is 'x'; write numbers"),
    (["--scenario", "STORY", "--seed", "-1"], "Invalid value for '--seed'"),
    (["--scenario", "STORY", "--seed", "1", "--seeds", "2"], "--seed does not go with --seeds."),
    (["--scenario", "STORY", "--chaos", "2"], "--chaos does not go with --scenario."),
    (["--scenario", "STORY", "--chips", "2"], "--chips does not go with --scenario."),
    (["--scenario", "STORY", "--table", "paper"], "--table does not go with --scenario."),
    (["--scenario", "STORY", "--no-elastic"], "--no-elastic does not go with --scenario."),
    (["--scenario", "STORY", "--trace", "FOLDER"], "--trace FOLDER: cannot be written (Is a directory)"),
    (["--scenario", "STORY", "--trace", "FOLDER/no/a"], "--trace FOLDER/no/a: cannot be written (No such file or"),
    (["--scenario", "STORY", "--trace", "STORY"], "--trace STORY would overwrite the scenario."),
    (["--scenario", "STORY", "--seeds", "1-2", "--trace", "FOLDER/a"], "--trace and --plot go with one seed."),
    (["--chaos", "2", "--trace", "FOLDER/a"], "--trace and --plot go with one seed."),
    (["--chaos", "0"], "Invalid value for '--chaos'"),
    (["--chaos", "2", "--seeds", "1"], "--seeds does not go with --chaos N"),
    (["--chaos", "2", "--hours", "1"], "--hours does not go with --chaos."),
    (["--seed", "2"], "--seed goes with --scenario or --chaos."),
    (["--trace", "FOLDER/a"], "--trace goes with --scenario or --chaos."),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), USAGE, ids=[" ".join(words) for words, _ in USAGE])
def test_words_that_do_not_go_together_are_one_line_and_2(
    words: list[str], says: str, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def real(text: str) -> str:
        return text.replace("STORY", str(story)).replace("FOLDER", str(story.parent))

    assert run(["simulate", *map(real, words)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"zdiloco: {real(says)}")
    assert said.err.count("\n") <= 2  # the second says where help is
    assert story.read_text() == SMALL
    assert [each.name for each in story.parent.iterdir()] == ["story.txt"]


@pytest.mark.slow
def test_a_story_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    assert run(["simulate", "--scenario", str(EXAMPLE), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
