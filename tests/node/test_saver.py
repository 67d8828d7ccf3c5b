"""Saving while training goes on: bounded in every step, whole at the end, and whatever the disk says no step fails."""

import errno
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.accept.pace import assert_within
from tests.rundir.test_store import FailingDisk
from zdiloco.errors import ConfigError
from zdiloco.node import saver as saving
from zdiloco.node.parts import Parts
from zdiloco.node.saver import COPY_RATE, COPY_SHARE, Saver
from zdiloco.rundir.disk import Disk
from zdiloco.rundir.saved import INNER, About, Saved, SavedStates
from zdiloco.tensor import mirror

STEP_S = 0.05
LIMIT_S = 60.0


class Counter:
    """A stateful part: how many steps were made."""

    def __init__(self) -> None:
        self.extra: Any = None
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        if isinstance(self.extra, Exception):
            raise self.extra
        return {"steps": self.steps, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class Rig:
    """A model, its optimizer, and a saver beside them, on one folder."""

    def __init__(self, folder: Path, widths: tuple[int, ...] = (3, 5, 2), *, disk: Disk | None = None) -> None:
        torch.manual_seed(1)
        pairs = itertools.pairwise(widths)
        self.model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairs))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.counter = Counter()
        self.parts = Parts(self.model, self.optimizer, {"counter": self.counter})
        self.states = SavedStates(folder, "a", disk)
        self.failures: list[BaseException] = []
        self.now = 0.0
        self.saver = Saver(
            self.states, self.parts, self._about, every_s=10.0, clock=lambda: self.now, on_failure=self.failures.append
        )

    def _about(self) -> About:
        return self.parts.about("a", "r", "r-1", self.counter.steps)

    def step(self, step_s: float = STEP_S) -> None:
        """One inner step, with other gradients in each, and the call after it."""
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + self.counter.steps)
        self.optimizer.step()
        self.counter.steps += 1
        self.saver.now_step(step_s)

    def until(self, condition: Callable[[], Any], act: Callable[[], None]) -> None:
        """Act again and again until a condition holds, with an end; the thread beside gets its turn."""
        ends, pause = time.monotonic() + LIMIT_S, threading.Event()
        while not condition():
            assert time.monotonic() < ends
            assert not self.failures
            act()
            pause.wait(0.0005)

    def save(self) -> Saved:
        """Step until one more is saved; it is time for it."""
        self.now += 11.0
        before = self.saver.saves
        self.until(lambda: self.saver.saves > before, self.step)
        return self.found()

    def found(self) -> Saved:
        found = SavedStates(self.states._folder.parent, "a").read()
        assert found
        return found

    def inner(self) -> Any:
        return self.optimizer.state_dict()


@pytest.fixture
def rig_of(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**more: Any) -> Rig:
        rigs.append(Rig(more.pop("folder", tmp_path), **more))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.saver.close(rig.now + LIMIT_S)
        assert not rig.failures


def same_state(one: Any, other: Any) -> bool:
    if one["param_groups"] != other["param_groups"] or one["state"].keys() != other["state"].keys():
        return False
    pairs = [(one["state"][key], other["state"][key]) for key in one["state"]]
    return all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


def test_what_is_saved_is_what_was_there_and_comes_back(rig_of: Callable[..., Rig]) -> None:
    """All of this small state is copied in one step, so it is that of one boundary, bit for bit."""
    rig = rig_of()
    seen: dict[int, Any] = {}
    rig.until(lambda: rig.saver.saves, lambda: (rig.step(), seen.update({rig.counter.steps: _copy(rig.inner())})))
    found = rig.found()
    step = found.about.step
    assert found.parts["counter"] == {"steps": step, "extra": None}
    assert same_state(found.parts[INNER], seen[step])
    other = rig_of(folder=Path("/nowhere"))
    torch.manual_seed(7)
    before = torch.rand(3)
    assert other.parts.restore(found, warm=True) == (INNER, "random", "counter")
    assert same_state(other.inner(), seen[step])
    assert other.counter.steps == step
    again = torch.rand(3)
    other.parts.restore(found, warm=False)
    assert torch.equal(torch.rand(3), again)
    assert not torch.equal(before, again)


def _copy(state: Any) -> Any:
    cloned = {k: {n: t.clone() for n, t in entry.items()} for k, entry in state["state"].items()}
    return {"param_groups": state["param_groups"], "state": cloned}


def test_it_is_saved_at_the_first_step_and_then_as_often_as_asked_for(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of()
    rig.until(lambda: rig.saver.saves, rig.step)
    for _ in range(50):
        rig.step()
    assert rig.saver.saves == 1
    rig.save()
    assert rig.saver.saves == 2


def test_a_step_pays_for_a_bounded_number_of_bytes(rig_of: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, rates and model are all small here: what is counted is what is copied in one call."""
    monkeypatch.setattr(mirror, "PIECE", 512)
    monkeypatch.setattr(mirror, "TENSOR_COST", 8)
    monkeypatch.setattr(saving, "PIECE", 512)
    monkeypatch.setattr(saving, "COPY_RATE", 4e4)
    rig = rig_of(widths=(40, 100, 40))
    copied: list[int] = []
    monkeypatch.setattr(mirror.Mirror, "_copy", _counting(mirror.Mirror._copy, copied))
    most, steps = 0, 0
    rig.until(lambda: rig.saver._gathering, rig.step)
    while rig.saver._gathering:  # the last one takes the random state, too: 7.5 kB, whatever the model
        most, steps = max(most, sum(copied)), steps + 1
        copied.clear()
        rig.step()
    total = sum(t.numel() * t.itemsize for e in rig.inner()["state"].values() for t in e.values())
    assert total > 60_000
    assert steps >= total // (512 + 4096)
    assert most <= 512 + 512 + 64


def _counting(real: Callable[..., None], copied: list[int]) -> Callable[..., None]:
    def counting(self: Any, copy: Tensor, tensor: Tensor, device: Any) -> None:
        copied.append(tensor.numel() * tensor.itemsize)
        real(self, copy, tensor, device)

    return counting


def test_both_moments_of_an_element_are_of_one_step(
    rig_of: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PIECE", 256)
    monkeypatch.setattr(saving, "PIECE", 256)
    monkeypatch.setattr(saving, "COPY_RATE", 1.0)
    rig = rig_of(widths=(30, 40))
    rig.step()

    def step() -> None:
        rig.counter.steps += 1
        for entry in rig.optimizer.state.values():
            entry["exp_avg"].fill_(rig.counter.steps)
            entry["exp_avg_sq"].fill_(rig.counter.steps)
        rig.saver.now_step(STEP_S)

    rig.until(lambda: rig.saver.saves, step)
    found = rig.found()
    for entry in found.parts[INNER]["state"].values():
        assert torch.equal(entry["exp_avg"], entry["exp_avg_sq"])
    weights = found.parts[INNER]["state"][0]["exp_avg"]
    assert weights.unique().numel() > 10  # from so many steps
    assert found.parts["counter"]["steps"] == found.about.step >= weights.max()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_stops_nothing_and_is_tried_again(
    rig_of: Callable[..., Rig], number: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk(3, number)
    rig = rig_of(disk=disk)
    for _ in range(3):
        calls = len(disk.calls)
        rig.until(lambda calls=calls: len(disk.calls) > calls, rig.step)
        rig.now += 11.0
    assert rig.saver.saves == 0
    assert caplog.text.count("is not saved for now") == 1  # the same reason is said once
    disk.left = 10**6
    assert rig.save().about.step <= rig.counter.steps


def test_what_cannot_be_saved_is_said_at_once_and_later_only_warned_of(
    rig_of: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_of()
    rig.counter.extra = {"what": {1, 2}}
    with pytest.raises(
        ConfigError, match=r"counter\.extra\.what cannot be saved: it is a .*set.*learner\.save_every_s"
    ):
        rig.until(lambda: False, rig.step)
    rig.counter.extra = None
    rig.save()
    rig.counter.extra = {1, 2}
    rig.now += 11.0
    rig.until(lambda: "counter.extra cannot be saved" in caplog.text, rig.step)
    rig.counter.extra = None
    rig.save()


def test_a_part_that_raises_is_named_at_once_and_later_only_warned_of(
    rig_of: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    """Above all the end of a training is not broken off by it: the learner has its leave to take."""
    rig = rig_of()
    rig.counter.extra = AssertionError("not now")
    with pytest.raises(ConfigError, match=r"counter cannot be saved: Counter.state_dict\(\) raises AssertionError"):
        rig.until(lambda: False, rig.step)
    rig.counter.extra = None
    good = rig.save()
    rig.counter.extra = AssertionError("not now")
    rig.now += 11.0
    rig.until(lambda: "Counter.state_dict() raises" in caplog.text, rig.step)
    rig.saver.now_leave()
    rig.saver.close(rig.now + LIMIT_S)
    assert rig.failures == []
    assert rig.found().about == good.about


def test_state_that_is_not_finite_is_not_saved(rig_of: Callable[..., Rig], caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_of()
    good = rig.save()
    next(iter(rig.optimizer.state.values()))["exp_avg"].fill_(float("nan"))
    rig.now += 11.0
    rig.until(lambda: "not finite" in caplog.text, lambda: rig.saver.now_step(STEP_S))
    assert rig.found().about == good.about


def test_who_starts_over_gets_the_last_finite_state_or_none(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of()
    good = rig.save()
    next(iter(rig.optimizer.state.values()))["exp_avg"].fill_(float("nan"))
    rig.saver.now_start_over()
    assert not rig.optimizer.state
    rig.until(lambda: rig.optimizer.state, lambda: rig.saver.now_step(STEP_S))
    assert same_state(rig.inner(), good.parts[INNER])
    for path in rig.states.files():
        path.unlink()
    rig.saver.now_start_over()
    rig.until(lambda: not rig.saver._busy, lambda: None)
    rig.saver.now_step(STEP_S)
    assert not rig.optimizer.state
    rig.save()


def test_who_starts_over_while_it_saves_saves_nothing_of_before(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of()
    rig.until(lambda: rig.saver._gathering, rig.step)
    rig.saver.now_start_over()
    fresh = rig.counter.steps
    rig.step()
    rig.step()
    found = rig.save()
    made = found.about.step - int(found.parts[INNER]["state"][0]["step"])
    assert made == fresh


def test_what_is_there_at_the_end_is_saved(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of()
    rig.save()
    for _ in range(7):
        rig.step()
    rig.saver.now_leave()
    rig.saver.close(rig.now + LIMIT_S)
    found = rig.found()
    assert found.about.step == rig.counter.steps
    assert same_state(found.parts[INNER], rig.inner())


def test_a_disk_that_hangs_at_the_end_is_not_waited_for(
    rig_of: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    class Hanging(Disk):
        def sync(self, descriptor: int) -> None:
            go_on.wait(LIMIT_S)

    rig = rig_of(disk=(disk := Disk()))
    good = rig.save()
    monkeypatch.setattr(disk, "sync", Hanging().sync)
    rig.step()
    rig.saver.now_leave()
    began = time.monotonic()
    rig.saver.close(rig.now + 0.1)
    assert_within(5.0, began)
    assert "no time for it" in caplog.text
    assert rig.found().about == good.about
    go_on.set()


def test_who_wants_nothing_saved_has_nothing_saved(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.saver.close(LIMIT_S)
    rig.saver = Saver(
        rig.states, rig.parts, rig._about, every_s=0.0, clock=lambda: rig.now, on_failure=rig.failures.append
    )
    for _ in range(5):
        rig.step()
        rig.now += 100.0
    rig.saver.now_leave()
    rig.saver.close(rig.now + LIMIT_S)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
def test_the_pause_with_25_million_parameters(rig_of: Callable[..., Rig], say: Callable[[str], None]) -> None:
    """AdamW holds 200 MB. Bytes are bounded exactly; the times are said, and bounded so that a busy machine passes."""
    rig = rig_of(widths=(1000,) * 26)
    began = time.monotonic()
    rig.step()
    pauses: list[float] = []

    def pause() -> None:
        at = time.monotonic()
        rig.saver.now_step(STEP_S)
        pauses.append(time.monotonic() - at)

    for number in (1, 2):
        rig.until(lambda number=number: rig.saver.saves == number, pause)
        rig.now += 11.0
    worst, p99 = max(pauses), statistics.quantiles(pauses, n=100)[98]
    busy = [each for each in pauses if each > 1e-4]
    say(
        f"saving 200 MB of AdamW: {len(busy)} steps of {COPY_SHARE * COPY_RATE * STEP_S / 1e6:.0f} MB, p50 "
        f"{statistics.median(busy) * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms, longest {worst * 1e3:.2f} ms; two saves in "
        f"{time.monotonic() - began:.1f} s"
    )
    assert statistics.median(busy) < STEP_S / 4
