"""Plays seeded scripts of disturbances with real processes, small enough that many seeds can be played.

Rule: what a script found wrong is told with its seed, the script and the folder of the logs; `python -m
tests.chaos.theatre SEED COUNT [KIND ...]` plays one again.
"""

import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco.chaos.director import Director, Done
from zdiloco.chaos.figures import Pauses, Return, grouped, pauses_of, returns_of, told
from zdiloco.chaos.fleet import Fleet
from zdiloco.chaos.forked import Nursery
from zdiloco.chaos.script import EVERYTHING, Deed, Kind, deeds
from zdiloco.chaos.verdict import Verdict, check_pauses, judge

LEARNERS = {"a": 4.0, "b": 5.0, "c": 7.0}
"""Name -> slowdown: steps of 20 to 50 ms, most of it asleep."""
SAVES_S = (0.3, 1.0, 3.0)
"""Times between two checkpoints."""
QUIET_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A script that was played to its end, and what was found."""

    seed: int
    fleet: Fleet
    done: list[Done]
    verdict: Verdict
    returns: list[Return]
    pauses: Pauses | None
    seconds: float

    def assert_sound(self) -> None:
        """Every claim holds; or what does not is told with all that is needed to look into it."""
        script = "\n".join(f"  {each.deed}" for each in self.done)
        assert self.verdict.passed, f"{self.verdict.failed}\nseed {self.seed}, logs in {self.fleet.folder}\n{script}"

    def lines(self) -> Iterable[str]:
        """All figures, for people."""
        yield f"seed {self.seed}: {len(self.done)} disturbances in {self.seconds:.0f} s"
        yield from (f"killed {who} merged again: {told(returns)}" for who, returns in grouped(self.returns).items())
        for check in (*self.verdict.checks, check_pauses(self.pauses)):
            yield f"{check.passed!s:<6}{check.name}: {check.figure}"


def settings(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Default timeouts; a tiny task on a text of its own; more rounds and checkpoints than usual; the rest by seed."""
    texts = folder / "texts"
    texts.mkdir()
    for chapter in range(200):  # whole files are held out of the training data
        text = f"Chapter {chapter}. It was the best of times, it was the worst of times; nobody waited. "
        (texts / f"{chapter}.txt").write_text(text * 20)
    chance = random.Random(seed)
    return {
        "sync": {
            "sync_period": 8, "num_fragments": 4, "checkpoint_every_s": chance.choice(SAVES_S),
            "min_quorum": chance.choice((1, 1, 2)),
        },
        "merge": {"outer_momentum": chance.choice((0.0, 0.0, 0.3)), "publish_codec": chance.choice(("bf16", "fp32"))},
        "learner": {"codec": chance.choice(("bf16", "int8", "4bit"))},
        "checkpoint": {"keep": chance.choice((1, 2))},
        "task": {
            "context": 32, "batch_size": 2, "min_data_bytes": 1000, "num_shards": 1, "validation_batches": 1,
            "data_dir": str(texts),
        },
    }  # fmt: skip


def play(forks: Nursery, folder: Path, seed: int, script: Iterable[Deed]) -> Played:
    """Play the script in a new run below `folder`, let it heal, end it, and judge it."""
    began_at = time.monotonic()
    with Fleet(folder / "chaos", LEARNERS, settings(folder, seed), forks=forks) as fleet:
        fleet.begin()
        quiet_at = time.monotonic()
        fleet.rest(QUIET_S)
        quiet, director = (quiet_at, time.monotonic()), Director(fleet)
        director.play(script)
        fleet.settle(time.monotonic())
        fleet.end()
    return Played(
        seed=seed,
        fleet=fleet,
        done=director.done,
        verdict=judge(fleet, director.done),
        returns=returns_of(director.done, fleet.chronicle),
        pauses=pauses_of(fleet.run_dir, director.done, quiet),
        seconds=time.monotonic() - began_at,
    )


def main(seed: int, count: int, kinds: list[str]) -> int:
    """Play so many deeds of this seed, of these kinds (all, where none is named), and print what was found."""
    folder = Path(tempfile.mkdtemp(prefix="zdiloco-chaos-"))
    chosen = {kind: often for kind, often in EVERYTHING.items() if not kinds or kind.name in kinds}
    with closing(Nursery(folder)) as forks:
        played = play(forks, folder, seed, itertools.islice(deeds(seed, tuple(LEARNERS), chosen), count))
    for each in played.done:
        rest = f"; all are merged again after {each.settled_at - each.healed_at:.1f} s" if each.settled_at else ""
        print(f"  {each.deed}{rest}")
    print("\n".join([*played.lines(), str(folder)]))
    return 0 if played.verdict.passed else 1


if __name__ == "__main__":
    _, first, second, *rest = sys.argv
    assert all(name in Kind.__members__ for name in rest), f"known kinds are {', '.join(Kind.__members__)}"
    sys.exit(main(int(first), int(second), rest))
