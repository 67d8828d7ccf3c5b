"""What becomes of contributions that cannot be merged, or not as they are, while two others go on (user case C-41)."""

import re
from dataclasses import replace
from math import nan

import pytest

from zdiloco.core import machine as m
from zdiloco.core.messages import Ack
from zdiloco.core.params import SyncParams
from zdiloco.core.status import status
from zdiloco.sim.actors import Actor
from zdiloco.sim.world import World

MISBEHAVES_S = 8.0
BEHAVES_S = 30.0


class Fleet(World):
    """Three learners; what the one called 'bad' sends has the norm `norm` while that is set."""

    def __init__(self) -> None:
        super().__init__(SyncParams(sync_period=8, min_quorum=2), 2)
        self.norm: float | None = None
        self.sent_parts: list[m.Part] = []
        for name in ("a", "b", "bad"):
            self.join(name)

    def do_syncer(self, site, action) -> None:
        if isinstance(action, m.Screen) and action.id.name == "bad" and self.norm is not None:
            site.body.norms[action.id] = self.norm
        if isinstance(action, m.Merge):
            self.sent_parts += action.parts
        super().do_syncer(site, action)

    def misbehave(self, norm: float) -> list[m.Part]:
        """Let it train, misbehave and behave; returns all parts that were merged while it misbehaved."""
        self.run(MISBEHAVES_S)
        self.norm, before = norm, len(self.sent_parts)
        self.run(2 * MISBEHAVES_S)
        parts = self.sent_parts[before:]
        self.norm = None
        self.run(BEHAVES_S)
        return parts

    def actor(self, name: str) -> Actor:
        return next(actor for key, actor in self.actors.items() if key.name == name)

    def merged_late(self, name: str) -> bool:
        """Whether work that was made after the misbehaving is merged, on every fragment."""
        work_at = self.actor(name).work_at
        late = [work for work, at in work_at.items() if at > 2 * MISBEHAVES_S + 2]
        return all(any((fragment, work) in self.merged_at for work in late) for fragment in range(2))


@pytest.mark.parametrize(("norm", "reason"), [(nan, "non_finite"), (1e30, "norm")])
def test_what_cannot_be_merged_is_refused_and_its_learner_starts_over(norm: float, reason: str) -> None:
    fleet = Fleet()
    before = fleet.actor("bad").key
    parts = fleet.misbehave(norm)
    learners = {each["name"]: each for each in status(fleet.site.machine, fleet.now)["learners"]}
    assert {part.id.name for part in parts} == {"a", "b"}
    assert all((part.clip, part.weight > 0) == (1.0, True) for part in parts)
    assert fleet.actor("bad").key != before, "a new incarnation"
    assert fleet.actor("bad").machine.counts[f"refused: {reason}"] >= 1
    assert status(fleet.site.machine, fleet.now)["refused"][reason] >= 1
    assert any(f"{reason}: " in note for note in fleet.notes)
    assert learners["bad"]["state"] == "live", "it counts again"
    assert all(fleet.merged_late(name) for name in ("a", "b", "bad"))
    fleet.audit()


@pytest.mark.parametrize(("norm", "remark", "clip"), [(10.0, "clipped", 0.3), (0.0, "zero", 0.0)])
def test_what_is_too_large_or_nothing_is_merged_in_part_and_remarked(norm: float, remark: str, clip: float) -> None:
    fleet = Fleet()
    parts = fleet.misbehave(norm)
    mine = [part for part in parts if part.id.name == "bad"]
    assert mine
    assert {(round(part.clip, 3), part.weight > 0) for part in mine} == {(clip, clip > 0)}
    assert {part.clip for part in parts if part.id.name != "bad"} == {1.0}
    answer = status(fleet.site.machine, fleet.now)
    learners = {each["name"]: each for each in answer["learners"]}
    assert answer["remarks"] == learners["bad"]["remarks"] == {remark: len(mine)}
    assert learners["a"]["remarks"] == {}
    assert fleet.actor("bad").machine.counts[f"remark: {remark}"] == len(mine)
    assert any(f"{remark}: " in note for note in fleet.notes)
    assert all(fleet.merged_late(name) for name in ("a", "b", "bad"))
    fleet.audit()


def test_the_work_of_a_long_absence_is_scaled_down_and_never_refused() -> None:
    fleet = Fleet()
    fleet.run(MISBEHAVES_S)
    bad, site = fleet.actor("bad"), fleet.site
    bad.site = None  # cut off; it trains on
    fleet.run(MISBEHAVES_S + 120.0)
    before = len(fleet.sent_parts)
    fleet.norm = 1000.0  # of all its steps in one direction
    bad.site = site
    fleet.run_until(lambda: any(part.id.name == "bad" for part in fleet.sent_parts[before:]), 60.0)
    fleet.norm = None
    fleet.run(fleet.now + 20.0)
    clip = next(part.clip for part in fleet.sent_parts[before:] if part.id.name == "bad")
    assert 10 * 3.0 / 1000 < clip < 1, "the bound grows with the root of the steps"
    assert "norm" not in status(site.machine, fleet.now)["refused"]
    fleet.audit()


def test_the_learner_is_told_why() -> None:
    fleet = Fleet()
    heard: list[Ack] = []
    send = fleet.do_syncer

    def listen(site, action) -> None:
        if isinstance(action, m.Send) and isinstance(action.message, Ack) and action.message.remark:
            heard.append(action.message)
        send(site, action)

    fleet.do_syncer = listen
    fleet.misbehave(10.0)
    assert heard
    assert re.fullmatch(r"its norm is 10 after \d+ steps, the bound 3 is 3 times what .*: scaled by 0.3", heard[0].text)


def test_what_a_robust_merge_leaves_out_is_merged_by_the_books_and_remarked() -> None:
    """It counts as merged, tokens and all, and its learner goes on from there; none of it comes a second time."""
    fleet = Fleet()
    fleet.run(MISBEHAVES_S)
    merge, trimmed = fleet.site.body._merge, 0

    def trim(action: m.Merge) -> m.MergeDone:
        nonlocal trimmed
        bad = tuple((part.id, 0.75) for part in action.parts if part.id.name == "bad")
        trimmed += len(bad)
        plain = "" if len(action.parts) > 2 else "2 contributions, a robust merge takes 3"
        return replace(merge(action), trimmed=bad, plain=plain)

    fleet.site.body._merge = trim
    before = fleet.site.machine.merged_tokens
    fleet.run(3 * MISBEHAVES_S)
    fleet.site.body._merge = merge
    fleet.run(3 * MISBEHAVES_S + BEHAVES_S)
    answer = status(fleet.site.machine, fleet.now)
    learners = {each["name"]: each for each in answer["learners"]}
    assert trimmed
    assert answer["remarks"] == learners["bad"]["remarks"] == {"trimmed": trimmed}
    assert fleet.actor("bad").machine.counts["remark: trimmed"] == trimmed
    assert any("trimmed: its direction is not that of the others on 75% of its values" in note for note in fleet.notes)
    assert answer["refused"] == {}
    assert answer["plain_rounds"] == sum(desk.turnout.plain for desk in fleet.site.machine.desk)
    assert fleet.site.machine.merged_tokens > before
    assert fleet.merged_late("bad")
    fleet.audit()
