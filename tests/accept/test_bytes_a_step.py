"""What a learner sends and receives in a step with 4 bits both ways, counted on its sockets, against a ring all-reduce.

The ring: in each step every value crosses 2 (M - 1) / M times each way in bf16, and nothing else is counted for it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from zdiloco.core.machine import SYNCER
from zdiloco.plan.model import Model
from zdiloco.plan.params import Settings
from zdiloco.plan.traffic import Pace, learner_flows
from zdiloco.tensor.codecs import get_codec

pytestmark = pytest.mark.net
M, H, P = 8, 24, 12
PACE_S = 0.02
TURNS = 3
"""How often each fragment is merged while bytes are counted."""
MOST = 1 / 80
FRAME_BYTES = 9
"""What ZMTP puts before a frame at most: flags and a long length. What TCP and IP add, both sides of the ratio pay."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "sync": {
        "sync_period": H, "num_fragments": P, "min_quorum": M, "report_every_s": 0.1, "beat_every_s": 1.0,
        "suspect_after_s": 30.0, "gone_after_s": 60.0, "checkpoint_every_s": 60.0, "park_after_s": 60.0,
    },
    "learner": {"codec": "4bit", "silent_after_s": 60.0, "answer_timeout_s": 30.0},
    "net": {"chunk_bytes": 2**20, "window_bytes": 2**23, "stall_s": 20.0, "give_up_s": 60.0},
}  # fmt: skip
"""The defaults of what costs bytes; patience that a loaded machine needs."""


def model_of(seed: int) -> nn.Sequential:
    """Nearly a million parameters in twelve fragments: smaller ones than anybody trains, so headers weigh more."""
    torch.manual_seed(seed)
    inner = [layer for _ in range(11) for layer in (nn.Linear(288, 288), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, 288), nn.ReLU(), *inner, nn.Linear(288, 8))


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def passed(trainer: Any) -> tuple[int, int]:
    """Bytes out and in since the start, with all frames of all sockets and what ZMTP puts before each."""
    counts = trainer.node._roads.of(SYNCER)
    return counts.bytes_up + FRAME_BYTES * counts.frames_up, counts.bytes_down + FRAME_BYTES * counts.frames_down


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_bits_both_ways_are_an_eightieth_of_a_ring(run_of: Callable[..., Any], say: Callable[[str], None]) -> None:
    run = run_of(merge={"delta_codec": "4bit"}, **DEFAULTS)
    syncer = run.start_syncer()
    trainers = [run.join(f"l{seed}", model=model_of(seed), optimizer=sgd, pace_s=PACE_S) for seed in range(M)]

    def turn(least: int) -> None:
        for fragment in range(P):
            where = partial(versions_of, trainers, fragment)
            run.until(lambda where=where: min(where()) >= least, f"version {least} of fragment {fragment} everywhere")

    turn(1)
    first = min(desk.stamp.version for desk in syncer.machine.desk)
    before, rounds = [passed(trainer) for trainer in trainers], syncer.machine.rounds
    steps, pulled = sum(t.steps for t in trainers), [t.node.machine.counts["pulled"] for t in trainers]
    turn(first + TURNS)
    merged, contributions = syncer.machine.rounds - rounds, syncer.machine.contributions
    after = [passed(trainer) for trainer in trainers]
    out, in_ = (sum(now[way] - then[way] for now, then in zip(after, before, strict=True)) for way in (0, 1))
    apart = (sum(t.steps for t in trainers) - steps) / M / (merged / P)
    assert [t.node.machine.counts["pulled"] for t in trainers] == pulled, "nothing was pulled whole meanwhile"
    assert contributions >= M * (merged + P - 1), "everybody is in every round"
    numel = sum(p.numel() for p in trainers[0].model.parameters())
    each = (out + in_) / M / (merged / P) / H  # of a turn of all fragments, as if it took no more than H steps
    ring = 2 * (2 * (M - 1) / M) * 2 * numel
    bodies = 2 * sum(get_codec("4bit").encoded_bytes(n) for n in syncer.body.layout.numels) / H
    say(f"{M} learners, {numel} parameters, P = {P}, H = {H}, 4bit both ways, {merged} rounds: a learner sends and "
        f"receives {each:.0f} bytes a step ({out / (out + in_):.2f} of them out), of which {each - bodies:.0f} are no "
        f"values; a ring of bf16 {ring:.0f}: 1/{ring / each:.0f} (calls came {apart:.1f} steps apart)")  # fmt: skip
    assert each <= MOST * ring
    planned = planned_of(run.config, syncer.body.layout)
    say(f"planned: {planned:.0f} bytes a step, {planned / each:.3f} of what was counted")
    assert planned == pytest.approx(each, rel=0.05)


def planned_of(config: Any, layout: Any) -> float:
    """Bytes out and in that a plan says, of a turn of all fragments as if it took no more than H steps."""
    settings = Settings(sync=config.sync, learner=config.learner, merge=config.merge, net=config.net)
    model = Model(numels=tuple(layout.numels), tensors=len(layout.tensors))
    flows = learner_flows(model, settings, Pace(step_s=PACE_S, period_s=H * PACE_S))
    return sum(flow.period_bytes for flow in flows) / H


def versions_of(trainers: list[Any], fragment: int) -> list[int]:
    """Which version of a fragment each learner has adopted; -1: it has not joined yet."""
    joined = [t.node.machine.duties for t in trainers if t.joined.is_set() and t.node is not None]
    return [duties[fragment].progress.seen.version for duties in joined] if len(joined) == M else [-1]
