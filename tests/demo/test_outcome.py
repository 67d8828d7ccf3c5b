"""The merged model is judged on the held-out text, and the yardstick says when it was made for something else."""

from pathlib import Path

import pytest

from zdiloco.demo.outcome import judge
from zdiloco.errors import ConfigError
from zdiloco.train.baseline import Baseline, Point
from zdiloco.train.models import ByteGPT
from zdiloco.train.params import TaskParams, preset
from zdiloco.train.tasks import Task


@pytest.fixture
def text(tmp_path: Path) -> TaskParams:
    """A task on a little text of its own."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(200):
        (folder / f"{number}.txt").write_text("a line of some text, and another one\n" * 40)
    return TaskParams(
        data_dir=str(folder), min_data_bytes=1000, context=16, batch_size=2, validation_batches=1,
        validation_batch_size=2,
    )  # fmt: skip


def curve_for(params: TaskParams, path: Path, digest: str) -> Path:
    settings = {key: getattr(params, key) for key in ("name", "preset")}
    points = (Point(steps=10, losses=(3.0, 3.2)), Point(steps=1000, losses=(2.0, 2.2)))
    Baseline(
        settings=settings, corpus="", corpus_digest=digest, made_with="a machine", seeds=(0, 1), points=points
    ).save(path)
    return path


def test_before_and_after_are_the_losses_of_these_values(text: TaskParams, tmp_path: Path) -> None:
    task = Task(text, shard=0)
    other = {name: value.detach() for name, value in ByteGPT(preset("tiny"), seed=9).named_parameters()}
    found = judge(text, other, 100, curve_for(text, tmp_path / "curve.json", task.corpus.digest))
    assert found.loss_before == task.evaluate()
    assert found.loss_after == task.evaluate_values(other)
    assert found.loss_before != found.loss_after
    assert found.lone is not None
    assert found.lone.loss == pytest.approx(2.6)
    assert found.lone.noise_factor == 1.0


def test_another_text_widens_the_noise_and_is_said(text: TaskParams, tmp_path: Path) -> None:
    values = {name: value.detach() for name, value in ByteGPT(preset("tiny"), seed=0).named_parameters()}
    found = judge(text, values, 100, curve_for(text, tmp_path / "curve.json", "of another text"))
    assert found.lone is not None
    assert found.lone.noise_factor == 2.0
    assert found.loss_before == found.loss_after
    assert "of another text" in found.remarks[-1]
    assert "--measure-baseline" in found.remarks[-1]
    assert any("batch_size 2, measured None" in remark for remark in found.remarks)


def test_below_the_first_point_of_the_curve_there_is_no_yardstick(text: TaskParams, tmp_path: Path) -> None:
    values = {name: value.detach() for name, value in ByteGPT(preset("tiny"), seed=0).named_parameters()}
    found = judge(text, values, 9, curve_for(text, tmp_path / "curve.json", "of another text"))
    assert found.lone is None
    assert found.why_no_lone == "the lone curve begins at 10 steps, the fastest learner made 9"
    assert found.remarks == ()


def test_values_of_another_model_are_refused(text: TaskParams, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of another model"):
        judge(text, {}, 100, curve_for(text, tmp_path / "curve.json", ""))
