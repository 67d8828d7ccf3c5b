"""A fleet over a far link: a learner beside the syncer, and two behind a relay; how all of them fare during a fault."""

import time
from dataclasses import dataclass

from tests.accept.stage import Child
from tests.wan.lab import Lab, Link

FAR = ("a", "b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fare:
    """What happened in a stretch of time: rounds of the run; steps of the near one, of the far one that made least, and
    of the fastest that the syncer hears, whom rounds follow.

    What is judged is one by the other, since a machine that is busy makes all of it slower. `each_step`: rounds that
    one learner alone calls with each of its steps. Of several, each round is called by whoever makes its H steps first,
    so that there are more: simulated, 1.1 to 1.4 times as many with three that are equally fast on the whole; and fewer
    where a round waits for the far ones for longer than H steps.
    """

    seconds: float
    rounds: int
    near: int
    far: int
    fastest: int
    each_step: float

    @property
    def per_period(self) -> float:
        """Rounds of each fragment in H steps of the fastest: 1 where it sets the pace alone."""
        return self.rounds / max(1, self.fastest) / self.each_step

    def over(self, other: "Fare") -> str:
        """How it compares, in words."""
        near, far = (
            mine / self.seconds / (its / other.seconds)
            for mine, its in ((self.near, other.near), (self.far, other.far))
        )
        return (
            f"for {self.seconds:.0f} s a fragment had {self.per_period:.2f} rounds in H steps of the fastest (before "
            f"{other.per_period:.2f}), the others {near:.2f} times the steps a second, the region {far:.2f} times"
        )


class Fleet:
    """The run: everybody is there and merged when it is made."""

    def __init__(self, lab: Lab, slowdown: float) -> None:
        self.lab = lab
        options = ("--slowdown", str(slowdown))
        self.syncer = lab.sync()
        self.near = lab.learner_in(0, "near", *options)
        self.relay = lab.relay(1)
        self.far = [lab.learner_in(1, name, *options, behind=True) for name in FAR]
        for name in ("near", *FAR):
            lab.until(lambda name=name: lab.member(name).get("rounds", 0) > 1, f"{name} is merged", *self.everybody)
        lab.until(lambda: lab.relayed(1) >= set(FAR), "both are behind the relay", *self.everybody)

    @property
    def everybody(self) -> list[Child]:
        return [self.syncer, self.near, self.relay, *self.far]

    @property
    def link(self) -> Link:
        return self.lab.links[0]

    def fares(self, seconds: float, rounds: int, *, apart: bool) -> Fare:
        """How all fare for so many seconds, and until so many rounds have been, and half as many steps of each far one;
        `apart`: these are not heard."""
        began, before = time.monotonic(), self._counts()
        living = [self.syncer, self.near, *self.far]

        def over() -> bool:
            made, _, *far = (now - then for now, then in zip(self._counts(), before, strict=True))
            return time.monotonic() >= began + seconds and made >= rounds and min(far) >= rounds // 2

        self.lab.until(over, f"{rounds} rounds, and steps of the region", *living, limit_s=seconds + 120)
        made, near, *far = (now - then for now, then in zip(self._counts(), before, strict=True))
        return Fare(
            seconds=time.monotonic() - began, rounds=made, near=near, far=min(far),
            fastest=near if apart else max(near, *far), each_step=self._each_step,
        )  # fmt: skip

    @property
    def _each_step(self) -> float:
        sync = self.lab.config.sync
        return sync.num_fragments / sync.sync_period

    def _counts(self) -> tuple[int, ...]:
        return self.lab.rounds(), *(self.lab.steps(name) for name in ("near", *FAR))

    def merged_s(self) -> float:
        """Wait until what the far ones have trained by now is merged; how long that took."""
        began = time.monotonic()
        trained = {name: sum(each.trained_tokens for each in self.lab.counters(name)) for name in FAR}
        for name, tokens in trained.items():
            self.lab.until(lambda n=name, t=tokens: self._merged(n) >= t, f"merged work of {name}", *self.everybody)
        return time.monotonic() - began

    def _merged(self, name: str) -> float:
        return float(self.lab.member(name).get("merged_tokens", 0.0))

    def end(self) -> None:
        """Everybody leaves in order."""
        self.lab.end(*self.far, self.near, self.relay, self.syncer)
