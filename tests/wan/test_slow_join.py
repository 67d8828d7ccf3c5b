"""A learner on a link of 2 Mbit/s: it joins a run whose values take far longer to load than any patience lasts."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child
from tests.wan.lab import Lab
from zdiloco.rundir.audit import audit

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.wan]
MBIT_S, WAY_S = 2.0, 0.04
FRAGMENTS = 24


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the values are, as they are published, and how patient everybody is; a step takes `pace_s`."""

    mbytes: float
    pace_s: float
    sections: dict[str, dict[str, Any]]

    @property
    def load_s(self) -> float:
        """What the values alone take on the link."""
        return self.mbytes * 8 / MBIT_S


FULL = Scale(
    mbytes=100.0, pace_s=0.5,
    sections={
        "sync": {"beat_every_s": 1.0, "suspect_after_s": 3.0, "gone_after_s": 6.0, "report_every_s": 0.1,
                 "checkpoint_every_s": 20.0},
        "learner": {"silent_after_s": 6.0, "answer_timeout_s": 5.0},
        "net": {"stall_s": 2.0},
    },
)  # fmt: skip
"""As a run is by default: loading takes 13 times net.give_up_s."""
SMALL = Scale(
    mbytes=1.5, pace_s=0.03,
    sections={
        "sync": {"beat_every_s": 0.2, "suspect_after_s": 1.0, "gone_after_s": 2.0},
        "learner": {"silent_after_s": 2.0, "answer_timeout_s": 0.5},
        "net": {"stall_s": 0.5, "give_up_s": 1.5},
    },
)  # fmt: skip
"""Little, and limits as short as a busy machine permits: loading takes four times net.give_up_s."""


class Near:
    """The pace of those beside the syncer: rounds for each step of theirs, from one look to the next."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.look()

    def look(self) -> None:
        self._rounds, self._steps = self._lab.rounds(), self._lab.steps("near")

    @property
    def rounds_per_period(self) -> float:
        """Rounds of each fragment in H steps."""
        rounds, steps = self._lab.rounds() - self._rounds, self._lab.steps("near") - self._steps
        return rounds / FRAGMENTS / (steps / self._lab.config.sync.sync_period) if steps else 0.0


def periods(lab: Lab, count: int, *living: Child) -> None:
    """Let so many periods pass for those beside the syncer."""
    steps = lab.steps("near") + count * lab.config.sync.sync_period
    lab.until(lambda: lab.steps("near") >= steps, "periods", *living)


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(SMALL, marks=[pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)], id="1.5 MB"),
        pytest.param(FULL, marks=[pytest.mark.long, pytest.mark.timeout(1800)], id="100 MB"),
    ],
)
def test_a_2_mbit_link_joins_and_contributes(
    lab_of: Callable[[int], Lab], say: Callable[[str], None], scale: Scale
) -> None:  # fmt: skip
    """B-27, B-33: it is never taken for dead, and those beside the syncer have as many rounds a step as before."""
    lab = lab_of(2)
    sync = {"sync_period": 24, "num_fragments": FRAGMENTS, **scale.sections["sync"]}
    lab.write(**{**scale.sections, "sync": sync}, merge={"publish_codec": "fp32"})
    link, parameters = lab.links[0], int(scale.mbytes * 1e6 / 4)
    link.both(mbit_s=MBIT_S, delay_s=WAY_S, queue_s=0.4)
    syncer = lab.sync()
    near = lab.ballast(0, "near", parameters, scale.pace_s)
    lab.until(lambda: lab.member("near").get("rounds", 0) > FRAGMENTS, "rounds", syncer, near)
    pace = Near(lab)
    periods(lab, 2, syncer, near)
    before = pace.rounds_per_period
    pace.look()
    began = time.monotonic()
    slow = lab.ballast(1, "slow", parameters, scale.pace_s)
    everybody, limit_s = (syncer, near, slow), 3 * scale.load_s + 60
    lab.until(lambda: lab.steps("slow") > 0, "it joins", *everybody, limit_s=limit_s)
    joined_s = time.monotonic() - began
    lab.until(lambda: lab.member("slow").get("merged_tokens", 0) > 0, "its merged work", *everybody, limit_s=limit_s)
    merged_s, meanwhile = time.monotonic() - began, pace.rounds_per_period
    loaded = link.carried["down"]["nbytes"]
    pace.look()
    periods(lab, 2, *everybody)
    after = pace.rounds_per_period
    lab.end(slow, near, syncer)
    say(
        f"{MBIT_S:g} Mbit/s and {2 * WAY_S * 1e3:g} ms, {scale.mbytes:g} MB of values, which alone take "
        f"{scale.load_s:.0f} s: joined after {joined_s:.1f} s, merged after {merged_s:.1f} s, {loaded / 1e6:.1f} MB "
        f"down; rounds of a fragment in H steps of others {before:.2f} before, {meanwhile:.2f} meanwhile, "
        f"{after:.2f} afterwards"
    )
    assert joined_s > 0.9 * scale.load_s
    assert min(meanwhile, after) > 0.6 * before
    assert scale is SMALL or "slow is" not in syncer.errors, "it was taken for silent"
    assert audit(lab.run_dir).balanced
