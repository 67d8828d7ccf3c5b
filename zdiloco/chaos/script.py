"""Seeded scripts of disturbances: what happens, to whom, after which pause, for how long.

Rule: the same seed gives the same script; nothing here looks at a clock or at a process. Who plays a script and meets
a process that is not there passes the deed over, and says so.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zdiloco.chaos.inside import HALF, LEARNER_PLACES, SYNCER_PLACES

SYNCER = "syncer"
STORM = 5
"""A restart storm kills the same process so often."""
STORM_GAP_S = 0.4
"""Between two kills of a storm: all of it lies within two seconds."""

SETTLES = 0.6
"""Share of the deeds after which the run is let come to rest."""


class Kind(StrEnum):
    """What can be done. The value is how it is told."""

    KILL_SYNCER = "kills the syncer"
    KILL_LEARNER = "kills"
    KILL_BOTH = "kills the syncer and"
    COLD = "kills, then starts as a new program,"
    ASK = "asks to leave (SIGTERM)"
    STORM = f"kills {STORM} times in a row"
    HOLD = "stops, shorter than anybody minds,"
    STOP = "stops, until it counts as gone,"
    REFUSE = "cuts off (connections refused)"
    HOLE = "cuts off (nothing comes through, either way)"
    RESET = "resets the connections of"
    FULL = "fills the disk of"
    SLOW = "slows the disk of"
    CLOCK = "sets the wall clock of"


KILLS = (Kind.KILL_SYNCER, Kind.KILL_LEARNER, Kind.KILL_BOTH)
OF_SYNCER = {Kind.KILL_SYNCER}
OF_LEARNER = {Kind.KILL_LEARNER, Kind.REFUSE, Kind.HOLE, Kind.RESET}
EVERYTHING: Mapping[Kind, int] = {kind: 3 if kind in KILLS else 1 for kind in Kind}
"""How often each kind comes in every stretch of a mixed script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """What a script must know of the run: seconds after which a silent process is suspect, and is gone."""

    suspect_after_s: float = 3.0
    gone_after_s: float = 6.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Deed:
    """One disturbance: `pause_s` after the one before it, for `for_s` (down, cut off, stopped, ...).

    `place`: the victim dies there, having passed it `passes` times (inside.py); empty: at once, wherever it is.
    `joining`: the place is one of its next start, so that it dies once more, while it joins. `settles`: afterwards
    everybody is merged before the next deed; else that one may come in the middle of the recovery.
    """

    number: int
    kind: Kind
    whom: tuple[str, ...]
    pause_s: float
    for_s: float = 0.0
    place: str = ""
    passes: int = 0
    joining: bool = False
    ahead_s: float = 0.0
    settles: bool = True

    def __str__(self) -> str:
        text = f"{self.kind} {', '.join(self.whom)}".replace(f"the syncer {SYNCER}", "the syncer")
        text = text.replace(f"and {SYNCER}, ", "and ")
        if self.place:
            text += f" at '{self.place}' (passed {self.passes} times{', once it is back' if self.joining else ''})"
        if self.ahead_s:
            text += f" {abs(self.ahead_s) / 3600:g} h {'ahead' if self.ahead_s > 0 else 'back'}"
        return f"{text}, for {self.for_s:.1f} s" if self.for_s else text


def deeds(
    seed: int, learners: Sequence[str], counts: Mapping[Kind, int] = EVERYTHING, times: Times | None = None
) -> Iterator[Deed]:
    """Yield the script of this seed, without end: stretches in which each kind comes so often, in any order."""
    chance = random.Random(seed)
    stretch = [kind for kind, count in sorted(counts.items()) for _ in range(count)]
    numbers = itertools.count(1)
    while stretch:
        chance.shuffle(stretch)
        for kind in stretch:
            yield _draw(next(numbers), kind, chance, learners, times or Times())


def _draw(number: int, kind: Kind, chance: random.Random, learners: Sequence[str], times: Times) -> Deed:
    whom = _victims(kind, chance, learners)
    place, passes, joining = "", 0, False
    if kind in KILLS and chance.random() < 0.5:
        places = LEARNER_PLACES if kind is Kind.KILL_LEARNER else SYNCER_PLACES
        place, passes = chance.choice(sorted([*places, HALF])), int(min(40.0, chance.expovariate(1 / 4)))
        joining = kind is not Kind.KILL_BOTH and chance.random() < 0.4
    return Deed(
        number=number,
        kind=kind,
        whom=whom,
        pause_s=round(min(3.0, chance.expovariate(1.5)), 3),
        for_s=round(_length(kind, chance, times), 3),
        place=place,
        passes=passes,
        joining=joining,
        ahead_s=chance.choice((3600.0, -3600.0)) if kind is Kind.CLOCK else 0.0,
        settles=chance.random() < SETTLES,
    )


def _victims(kind: Kind, chance: random.Random, learners: Sequence[str]) -> tuple[str, ...]:
    if kind in OF_SYNCER:
        return (SYNCER,)
    if kind is Kind.KILL_BOTH:
        return (SYNCER, *sorted(chance.sample(list(learners), chance.randint(1, len(learners)))))
    if kind in OF_LEARNER:
        return (chance.choice(list(learners)),)
    return (chance.choice([SYNCER, *learners]),)


def _length(kind: Kind, chance: random.Random, times: Times) -> float:
    """How long it lasts, in seconds; a killed process is started again at once, or soon."""
    if kind in (*KILLS, Kind.COLD, Kind.ASK):
        return chance.choice((0.0, 0.0, chance.uniform(0.0, 1.0)))
    if kind is Kind.HOLD:
        return chance.uniform(0.2, 0.7 * times.suspect_after_s)
    if kind in (Kind.STOP, Kind.REFUSE, Kind.HOLE):
        return times.gone_after_s * chance.uniform(1.1, 1.5)
    if kind in (Kind.FULL, Kind.SLOW, Kind.CLOCK):
        return chance.uniform(1.0, 4.0)
    return 0.0
