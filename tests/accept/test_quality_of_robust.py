"""What one hostile learner of four does to the demo's task, by how contributions are merged; and what that costs a run.

As `test_quality_of_codecs.py`: no clock, real models, bodies and codecs. Norms are judged as a syncer judges them
(`sync.clip`), so what is compared is what a robust merge adds to that. The hostile one trains, adopts and counts as the
others do; what it sends is replaced on its way in.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.accept.test_quality_of_codecs import FLAT, Fleet, H, P, view
from tests.core.samples import contribution
from zdiloco.core.machine import Part
from zdiloco.core.norms import Norms
from zdiloco.core.params import SyncParams
from zdiloco.core.progress import Held
from zdiloco.core.weights import weight_of
from zdiloco.node.publishing import Published
from zdiloco.node.syncer_body import Payload
from zdiloco.tensor.codecs import get_codec
from zdiloco.train.data import ShardCursor

pytestmark = pytest.mark.usefixtures("one_thread")
SYNC = SyncParams()
TOKENS = 100
RULES = ("none", "clip", "trim")


@dataclass(frozen=True)
class Sight:
    """What a hostile learner may look at: its own contribution, those of the others, and chance."""

    own: Tensor
    others: Sequence[Tensor]
    chance: torch.Generator

    def of_length(self, direction: Tensor) -> Tensor:
        """This direction, as long as its own contribution."""
        return direction * (self.own.norm() / direction.norm())

    def noise(self) -> Tensor:
        return self.of_length(torch.randn(self.own.shape, generator=self.chance))

    def push(self) -> Tensor:
        return self.of_length(torch.ones_like(self.own))

    def hidden(self) -> Tensor:
        """A constant push behind what the others agree on, enough of that not to stand apart."""
        common = sum(self.others, torch.zeros_like(self.own))
        return self.of_length(0.5 * common / common.norm() + math.sqrt(0.75) * self.push() / self.own.norm())


POISONS: dict[str, Callable[[Sight], Tensor]] = {
    "nobody": lambda sight: sight.own,
    "sign flipped": lambda sight: -sight.own,
    "sign flipped, 10 times": lambda sight: -10 * sight.own,
    "noise": lambda sight: sight.noise(),
    "noise, 10 times": lambda sight: 10 * sight.noise(),
    "constant push": lambda sight: sight.push(),
    "zeros": lambda sight: torch.zeros_like(sight.own),
    "trained on garbage": lambda sight: sight.own,
    "sign flipped, says 1000 times the tokens": lambda sight: -sight.own,
    "knows the rule, hides a push": lambda sight: sight.hidden(),
}


class Garbage(ShardCursor):
    """Random bytes instead of text."""

    def next_batch(self) -> Tensor:
        batch = super().next_batch()
        chance = torch.Generator().manual_seed(int(batch.sum()))
        return torch.randint(0, 256, batch.shape, generator=chance, dtype=batch.dtype)


class Hostile(Fleet):
    """The same fleet; its last learner sends what `poison` says. `left_out`: of each learner, how many times it was."""

    def __init__(self, seed: int, learners: int, robust: str, poison: str) -> None:
        self.robust, self.poison = robust, poison
        super().__init__(seed, learners, FLAT)
        self.norms = [Norms() for _ in range(P)]
        self.left_out = [0.0] * learners
        if poison == "trained on garbage":
            self.tasks[-1].cursor.__class__ = Garbage

    def crossed(self, fragment: int, parts: list[Part], payloads: list[Payload]) -> tuple[list[Part], list[Payload]]:
        codec, numel = get_codec(self.codec), self.layout.fragments[fragment].numel
        *others, own = (codec.decode(payload.data, numel) for payload in payloads)
        version = parts[-1].id.seq
        sight = Sight(own, others, torch.Generator().manual_seed(1000 * fragment + version))
        payloads = [*payloads[:-1], Payload(view(codec.encode(POISONS[self.poison](sight))), "t")]
        held = []
        for part, payload in zip(parts, payloads, strict=True):
            reason, norm, _ = self.syncer.screen(fragment, self.codec, payload)
            assert reason == ""
            claims = 1000 if "says" in self.poison and part is parts[-1] else 1
            message = contribution(fragment=fragment, steps=H, cut_step=H, tokens=H * TOKENS * claims)
            held.append(Held(id=part.id, message=message, arrived_at=0.0, norm=norm))
        passed = self.norms[fragment].judge(held, version, SYNC.clip, {part.id.name for part in parts})
        weighed = [
            replace(part, weight=weight_of(one.message, SYNC) * each.clip, clip=each.clip)
            for part, one, each in zip(parts, held, passed, strict=True)
        ]
        return weighed, payloads

    def merge(self, fragment: int) -> Published:
        published = super().merge(fragment)
        self.left_out = [count + share for count, share in zip(self.left_out, published.trimmed, strict=True)]
        return published


@functools.cache
def loss_of(seed: int, steps: int, robust: str, poison: str) -> tuple[float, float, float]:
    """Validation loss at the end, and what shares were left out of the hostile one's values and of the others'."""
    fleet = Hostile(seed, 4, robust, poison)
    loss = fleet.run(steps)
    rounds = P * steps / H
    *others, own = (count / rounds for count in fleet.left_out)
    return loss, own, max(others)


def table(seed: int, steps: int, say: Callable[[str], None], poisons: Sequence[str] = tuple(POISONS)) -> None:
    """Say the loss under every rule of every poison."""
    for poison in poisons:
        found = {rule: loss_of(seed, steps, rule, poison) for rule in RULES}
        losses = ", ".join(f"{rule} {loss:.4f}" for rule, (loss, _, _) in found.items())
        _, own, others = found["trim"]
        say(f"seed {seed}, {steps} steps, 4 learners, {poison}: {losses} nats/byte; left out {own:.0%} of its values, "
            f"of another at most {others:.1%}")  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_run_is_not_lost_to_one_that_goes_backward_and_claims_most_tokens(say: Callable[[str], None]) -> None:
    """C-55, M-10: what no bound on norms sees."""
    liar = "sign flipped, says 1000 times the tokens"
    control, *_ = loss_of(0, 72, "none", "nobody")
    plain, *_ = loss_of(0, 72, "none", liar)
    trimmed, own, others = loss_of(0, 72, "trim", liar)
    say(f"72 steps, 4 learners: {control:.4f} nats/byte; one of them {liar}: {plain:.4f}, trimmed {trimmed:.4f}")
    assert (own > 0.9, others < 0.01) == (True, True)
    assert trimmed < 1.03 * control
    assert plain > 1.2 * control


@pytest.mark.long
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("seed", range(3))
def test_one_of_four_is_left_out_whatever_it_sends(seed: int, say: Callable[[str], None]) -> None:
    table(seed, 144, say)
    control, *_ = loss_of(seed, 144, "none", "nobody")
    for poison in POISONS:
        loss, own, others = loss_of(seed, 144, "trim", poison)
        assert loss < 1.02 * control, poison
        assert others < 0.01, poison
        assert (own > 0.9) == (poison not in ("nobody", "zeros", "knows the rule, hides a push")), poison
