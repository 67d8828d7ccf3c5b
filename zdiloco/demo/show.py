"""A demo from curtain to curtain: play the story, gather what it has left, draw the picture.

Rule: what would make it fail at the end (no matplotlib) is asked for at the beginning.
"""

from pathlib import Path

from zdiloco import plots, strip
from zdiloco.demo import picture
from zdiloco.demo.learner_log import read_notes
from zdiloco.demo.progress import progress_for
from zdiloco.demo.report import Report, gather, picture_path, rounds_of
from zdiloco.demo.story import Plot, Stage, Story
from zdiloco.trace import read_trace

STRIP = "strip.png"
"""The strip chart of the demo, beside its picture."""


def perform(run_dir: Path, plot: Plot) -> Report:
    """Play the whole demo in `run_dir` and return its report; picture and strip chart are drawn.

    Raises DemoFailed where the story went wrong, ConfigError where it cannot be played here, StoreError for the disk.
    """
    plots.require()
    with progress_for() as watch:
        story = Stage(run_dir, plot, watch).play()
        watch(story, "evaluating the merged model")
    rounds = rounds_of(run_dir)
    report = gather(story, rounds)
    picture.draw(_scene(story, report, rounds), picture_path(run_dir))
    strip.draw(read_trace(run_dir), run_dir / STRIP)
    return report


def _scene(story: Story, report: Report, rounds: list[dict[str, object]]) -> picture.Scene:
    logs = sorted((story.run_dir / "learners").glob("*.jsonl"))
    return picture.Scene(
        names=story.plot.names,
        notes=[read_notes(path) for path in logs],
        rounds=rounds,
        training_at=story.training_at or story.began_at,
        killed_at=story.killed_at,
        returned_at=story.returned_at,
        ended_at=story.ended_at,
        victim=story.plot.victim,
        loss_after=report.outcome.loss_after,
        lone=report.outcome.lone,
    )
