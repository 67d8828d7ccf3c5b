"""What is seen meanwhile: lines without a terminal, a picture of the fleet with one; never on standard output."""

import io

import pytest
from rich.console import Console

from tests.demo.finished import Finished
from zdiloco.demo.progress import OnTerminal, Plain, latest, progress_for, summary

STATUS = {
    "rounds": 12,
    "learners": [
        {"name": "a", "state": "live", "step": 20, "steps_per_s": 2.5, "rounds": 7, "merged_tokens": 1234.0},
        {"name": "b", "state": "gone", "step": 6, "steps_per_s": 0.0, "rounds": 2, "merged_tokens": 40.0},
    ],
}


def test_the_newest_notes_of_every_learner_are_shown(finished: Finished) -> None:
    found = [(name, line["step"], line["loss"]) for name, line in latest(finished.story)]
    assert found == [("a", 20, 2.0), ("b", 5, 2.0), ("c", 8, 2.0)]
    assert summary(finished.story).startswith("waiting for the syncer; a 20 steps")
    finished.story.status, finished.story.share = STATUS, 0.25
    assert summary(finished.story).startswith("merged  25.0% of 2,000,000 tokens in 12 rounds; a 20 steps, loss 2.00;")


def test_a_killed_learner_is_shown_as_killed_until_it_is_back(finished: Finished) -> None:
    story = finished.story
    story.returned_at = 0.0
    (back,) = (finished.run_dir / "learners").glob(f"b-{12:016x}.jsonl")
    notes = back.read_text()
    back.unlink()
    assert "; b killed; c 8 steps" in summary(story)
    story.returned_at = 125.0
    back.write_text(notes.splitlines(keepends=True)[0])  # it has joined, and made no step
    assert "; b killed; c 8 steps" in summary(story)
    back.write_text(notes)
    assert "; b 5 steps, loss 2.00; c 8 steps" in summary(story)


def test_the_end_of_a_run_says_so(finished: Finished) -> None:
    finished.story.status = {**STATUS, "phase": "draining"}
    assert "in 12 rounds; the target is reached, open rounds close; a 20 steps" in summary(finished.story)


def test_notes_that_have_hardly_begun_are_no_notes(finished: Finished) -> None:
    for path in (finished.run_dir / "learners").glob("*.jsonl"):
        path.write_text("" if path.name.startswith("a") else '{"kind":"start"}\n{"kin')
    assert latest(finished.story) == []


def test_events_at_once_and_the_rest_every_few_seconds(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("zdiloco.demo.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    with Plain(Console(file=out, width=40)) as say:
        for step in range(20):
            now[0] = 100.0 + step
            say(finished.story, "killed b" if step == 6 else "")
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["5.0", "9.0", "11.0", "15.0", "19.0", "23.0"]
    assert lines[2] == "  11.0 s  killed b"
    assert all(line.endswith(" s  killed b") or "waiting for the syncer" in line for line in lines)


def test_a_terminal_sees_the_fleet(finished: Finished) -> None:
    out = io.StringIO()
    finished.story.status, finished.story.share = STATUS, 0.25
    with OnTerminal(Console(file=out, force_terminal=True, width=100)) as show:
        show(finished.story, "killed b (SIGKILL)")
        show(finished.story, "")
    text = out.getvalue()
    assert "killed b (SIGKILL)" in text
    assert "1,234" in text
    assert "gone" in text


def test_the_display_suits_the_stream() -> None:
    assert isinstance(progress_for(io.StringIO()), Plain)
