"""The curve reads as it was measured, errs against whoever is compared with it, and belongs to the default settings."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from zdiloco.errors import ConfigError, StoreError
from zdiloco.train.baseline import SHIPPED, Baseline, Point, at_step, curve, measure
from zdiloco.train.params import TaskParams
from zdiloco.train.tasks import Task


def made(*points: Point) -> Baseline:
    return Baseline(settings={}, corpus="", corpus_digest="", made_with="", seeds=(0, 1), points=points)


def test_between_the_points_it_is_linear_in_log_steps() -> None:
    line = made(Point(steps=100, losses=(3.0, 3.2)), Point(steps=400, losses=(2.0, 2.4)))
    assert line.at_step(100) == pytest.approx((3.1, math.sqrt(0.02)))
    assert line.at_step(400) == pytest.approx((2.2, math.sqrt(0.08)))
    loss, noise = line.at_step(200)
    assert loss == pytest.approx(2.65)
    assert noise == pytest.approx((math.sqrt(0.02) + math.sqrt(0.08)) / 2)


def test_outside_the_points_it_errs_downwards() -> None:
    line = made(Point(steps=100, losses=(3.0, 3.0)), Point(steps=400, losses=(2.0, 2.0)))
    assert line.at_step(1)[0] == 3.0
    assert line.at_step(1600)[0] == pytest.approx(1.0)


@pytest.mark.parametrize("steps", [(100,), (200, 100), (100, 100)])
def test_points_must_rise(steps: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="rising steps"):
        made(*(Point(steps=s, losses=(1.0, 2.0)) for s in steps))


def test_a_point_needs_two_finite_losses() -> None:
    for losses in [(1.0,), (1.0, float("nan"))]:
        with pytest.raises(ConfigError, match="2 finite losses"):
            Point(steps=1, losses=losses)


def test_measured_curve_is_that_of_lone_learners(params: TaskParams, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    threads = torch.get_num_threads()
    line = measure(params, seeds=(3, 4), totals=(12, 5), progress=lambda *at: heard.append(at))
    assert torch.get_num_threads() == threads
    assert heard == sorted(heard)
    assert heard[-1] == (34, 34)
    lone = Task(replace(params, seed=4), shard=0)
    for step in range(5):
        lone.train_step(lone.schedule.rate(step / 5, step))
    assert [p.steps for p in line.points] == [5, 12]
    assert line.points[0].losses[1] == pytest.approx(lone.evaluate(), rel=1e-5)
    assert line.at_step(12)[0] < line.at_step(5)[0]

    path = tmp_path / "curve.json"
    line.save(path)
    assert curve(path).at_step(7) == pytest.approx(line.at_step(7), abs=1e-4)
    assert at_step(7, path) == curve(path).at_step(7)
    assert curve(path).differences(params) == []
    assert curve(path).differences(replace(params, lr=1.0)) == [f"lr 1.0, measured {params.lr}"]


def test_shipped_curve_is_of_the_default_settings_and_falls() -> None:
    shipped = curve()
    assert shipped.differences(TaskParams()) == []
    means = [p.mean for p in shipped.points]
    assert means == sorted(means, reverse=True)
    assert all(len(p.losses) >= 3 and p.noise < 0.1 for p in shipped.points)
    assert shipped.at_step(1000)[0] < 2.1


@pytest.mark.parametrize("body", ["", "[]", "{}", SHIPPED.read_text().replace('"steps": ', '"steps": -')])
def test_damaged_curve_is_refused(body: str, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text(body)
    with pytest.raises(StoreError, match="is damaged"):
        curve(path)


def test_missing_curve_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read the baseline .*gone\.json"):
        curve(tmp_path / "gone.json")
