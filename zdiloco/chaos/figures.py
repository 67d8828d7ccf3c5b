"""What is counted when chaos is over: how fast the killed came back, and how long `step()` took of those who lived.

Rule: everything is read from what the processes have left behind (journal, learners' notes) and from the deeds' own
times; all are monotonic seconds of one machine. A return counts from the start of the new process, which is a fork: no
imports are in it.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco.chaos.chronicle import Chronicle, Events
from zdiloco.chaos.director import Done
from zdiloco.chaos.script import SYNCER, Kind
from zdiloco.demo.checks import percentile

STRETCH_S = 1.0
"""Calls of a victim within so long after its deed are its own trouble, and no survivor's."""
RETURNS = (Kind.KILL_SYNCER, Kind.KILL_LEARNER, Kind.KILL_BOTH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Return:
    """How a killed process came back: seconds of each phase, in order, from its start until work is merged again."""

    who: str
    kind: Kind
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """All phases together."""
        return sum(self.phases.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Pauses:
    """Time inside `step()` of survivors while others were disturbed, in parts of their own median step.

    `control`: the longest undisturbed call; `p99` and `longest` are what lies above it, `raw_p99` is not reduced.
    """

    calls: int
    control: float
    p99: float
    longest: float
    raw_p99: float
    raw_longest: float


def grouped(returns: Sequence[Return]) -> dict[str, list[Return]]:
    """Who came back from what: after a death of syncer and learners, learners wait for the syncer's return, too."""
    both = [each for each in returns if each.kind is Kind.KILL_BOTH and each.who != SYNCER]
    return {
        "syncers": [each for each in returns if each.who == SYNCER],
        "learners": [each for each in returns if each.kind is Kind.KILL_LEARNER],
        "learners that died with the syncer": both,
    }


def returns_of(done: Sequence[Done], chronicle: Chronicle) -> list[Return]:
    """The returns after plain kills, of those deeds after which the run was let come to rest."""
    killed = [each for each in done if each.deed.kind in RETURNS and each.settled_at]
    found = [_return(each, name, chronicle) for each in killed for name in each.back]
    return [each for each in found if each is not None]


def _return(done: Done, name: str, chronicle: Chronicle) -> Return | None:
    """How this victim came back; None where the journal does not tell, since lines of it died with a syncer."""
    back_at = done.back[name]
    times = _syncer(chronicle, back_at) if name == SYNCER else _learner(chronicle, name, done)
    if None in times.values():
        return None
    return Return(who=name, kind=done.deed.kind, phases=_phases(times, back_at))


def _syncer(chronicle: Chronicle, back_at: float) -> dict[str, float | None]:
    opened = chronicle.opened.first(back_at)
    merged = chronicle.merges.first(opened) if opened is not None else None
    return {"opens files and ports": chronicle.started.first(back_at), "hears the fleet": opened, "merges": merged}


def _learner(chronicle: Chronicle, name: str, done: Done) -> dict[str, float | None]:
    joined = chronicle.joined.get(name, Events()).newest(done.back[name], done.settled_at)
    if joined is None:
        return {"is welcome": None}
    arrived = chronicle.arrived.get(name, Events()).first(joined.t)
    merged = chronicle.merged.get(name, Events()).first(joined.t, joined.incarnation)
    return {"is welcome": joined.t, "trains and sends": arrived, "is merged": merged}


def _phases(times: Mapping[str, float | None], since: float) -> dict[str, float]:
    phases = {}
    for name, at in times.items():
        assert at is not None
        phases[name], since = max(0.0, at - since), max(at, since)
    return phases


def told(returns: Sequence[Return]) -> str:
    """Median, 90th percentile and maximum, all in all and phase by phase."""
    if not returns:
        return "none"
    parts = [("all", [each.seconds for each in returns])]
    parts += [(name, [each.phases[name] for each in returns]) for name in returns[0].phases]
    texts = [f"{n} {statistics.median(s):.2f} / {percentile(s, 90):.2f} / {max(s):.2f}" for n, s in parts]
    return f"{len(returns)} times, median / p90 / max in s: {', '.join(texts)}"


# ---- pauses


def pauses_of(run_dir: Path, done: Sequence[Done], quiet: tuple[float, float]) -> Pauses | None:
    """Pauses of everybody who was not disturbed himself; `quiet`: from when to when nobody was. None: no calls."""
    control, disturbed = [], []
    for path in sorted((run_dir / "learners").glob("*.jsonl")):
        name = path.name.rpartition("-")[0]
        own = [(d.began_at, d.healed_at + STRETCH_S) for d in done if name in d.deed.whom]
        others = [(d.began_at, d.ended_at) for d in done if name not in d.deed.whom]
        calls = calls_of(path)
        step_s = statistics.median([step for _, step, _ in calls]) if calls else 1.0
        for at, _, call_s in calls:
            if quiet[0] <= at <= quiet[1]:
                control.append(call_s / step_s)
            elif any(b <= at <= e for b, e in others) and not any(b <= at <= e for b, e in own):
                disturbed.append(call_s / step_s)
    if not control or not disturbed:
        return None
    longest = max(control)
    above = [max(0.0, share - longest) for share in disturbed]
    return Pauses(
        calls=len(disturbed),
        control=longest,
        p99=percentile(above, 99),
        longest=max(above),
        raw_p99=percentile(disturbed, 99),
        raw_longest=max(disturbed),
    )


def calls_of(path: Path) -> list[tuple[float, float, float]]:
    """(when it ended, length of the whole step, length of the call) of every step that a process has noted."""
    found: list[tuple[float, float, float]] = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # half of a line, where a kill came between
            found += _calls_in(json.loads(text))
    return found


def _calls_in(line: Mapping[str, Any]) -> Iterator[tuple[float, float, float]]:
    at = line["t"]
    for step_us, call_us in zip(reversed(line.get("step_us", ())), reversed(line.get("call_us", ())), strict=True):
        yield at, step_us / 1e6, call_us / 1e6
        at -= step_us / 1e6
