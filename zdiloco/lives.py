"""Who lived when, read from a trace: each learner process with its steps, its stalls and its end.

Rule: a real run knows a death only by silence, so a life ends when it was last heard, unless the same process is heard
again later; a simulated one says when it was.
Each syncer process begins a new part of a trace, whose clock may be another one; parts are never mixed.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from zdiloco import trace
from zdiloco.core.membership import MemberState
from zdiloco.trace import SYNCER

STALL_AT_LEAST_S = 1.0
STALL_TIMES = 4.0
"""A learner has stalled when its next step takes so many times as long as what is usually told of its steps."""
Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """At `t` the process had made so many steps and tokens (None: it is not told)."""

    t: float
    step: int
    trained: int | None


@dataclass(slots=True)
class Life:
    """One process of one learner, within one part of a trace. `region`: where it says it is.

    `how`: 'open' (it lives at the end of the part), 'finished', 'gone', 'killed' or 'replaced'. `silent`: spans in
    which it was not heard; the last one may be open, then its end is infinite. `before`: what an earlier part of the
    trace has already told of it.
    """

    who: str
    incarnation: str
    began: float
    ended: float = math.inf
    how: str = "open"
    marks: list[Mark] = field(default_factory=list)
    silent: list[Span] = field(default_factory=list)
    before: Mark | None = None
    region: str = ""

    @property
    def seconds(self) -> float:
        """How long it lived."""
        return max(0.0, self.ended - self.began)

    @property
    def steps(self) -> int:
        """Inner steps that are known of it, in this part."""
        return self.marks[-1].step - (self.before.step if self.before else 0) if self.marks else 0

    @property
    def trained(self) -> int | None:
        """Tokens that are known of it, in this part; None: none are told."""
        last = self.marks[-1].trained if self.marks else None
        return None if last is None else last - ((self.before.trained or 0) if self.before else 0)

    def mark(self, at: float, step: int, trained: int | None) -> None:
        """It was there at `at`; counts never fall."""
        last = self.marks[-1] if self.marks else None
        if last is not None:
            step = max(step, last.step)
            trained = last.trained if trained is None else max(trained, last.trained or 0)
        self.marks.append(Mark(t=at, step=step, trained=trained))

    def end(self, at: float, how: str) -> None:
        """It is over; what it did not do any more is forgotten."""
        self.ended, self.how = max(at, self.began), how
        self.silent = [(a, min(b, self.ended)) for a, b in self.silent if a < self.ended]

    def go_on(self, at: float) -> None:
        """It was taken for gone, and is heard again at `at`: it lived all the time."""
        self.silent.append((self.ended, at))
        self.ended, self.how = math.inf, "open"

    def stalls(self) -> list[Span]:
        """Spans in which it lived and made no step, or was not heard; in order, not overlapping."""
        found = list(self.silent)
        times = [mark.t for mark in self.marks]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        if gaps:
            usual = median(gaps)
            most = max(STALL_AT_LEAST_S, STALL_TIMES * usual)
            ends = [*times[1:], self.ended]
            found += [(a + usual, b) for a, b in zip(times, ends, strict=True) if most < b - a < math.inf]
        return joined_spans(span for span in found if span[1] > span[0])


@dataclass(slots=True)
class Part:
    """What one syncer process has told. `shares`: parameter share of each fragment."""

    records: list[trace.Record]
    start: trace.Start | None
    shares: tuple[float, ...]
    numels: tuple[int, ...]
    lives: list[Life]
    began: float
    ended: float

    def merges(self) -> list[trace.Merge]:
        """The rounds that were closed, in order."""
        return [record for record in self.records if isinstance(record, trace.Merge)]

    def deaths(self) -> dict[str, list[Span]]:
        """By learner, when it was dead: from an end that was none in order to its next process, or to our end."""
        lives: dict[str, list[Life]] = {}
        for life in self.lives:
            lives.setdefault(life.who, []).append(life)
        found: dict[str, list[Span]] = {}
        for name, mine in lives.items():
            nexts = [*(life.began for life in mine[1:]), self.ended]
            pairs = zip(mine, nexts, strict=True)
            found[name] = [(x.ended, at) for x, at in pairs if x.how in ("gone", "killed") and at > x.ended]
        return found

    def share(self, fragment: int) -> float:
        """The parameter share of a fragment."""
        return self.shares[fragment] if fragment < len(self.shares) else 0.0


def parts_of(records: Sequence[trace.Record]) -> list[Part]:
    """Cut a trace into what each syncer process has told; in each, records are in the order of their times."""
    pieces: list[list[trace.Record]] = []
    for record in records:
        returned = isinstance(record, trace.Returned) and record.who == SYNCER
        if not pieces or returned or isinstance(record, trace.Start):
            pieces.append([])
        pieces[-1].append(record)
    parts: list[Part] = []
    seen: dict[tuple[str, str], Life] = {}
    for piece in pieces:
        parts.append(_part(sorted(piece, key=lambda record: record.t), parts[-1] if parts else None))
        for life in parts[-1].lives:
            _go_on(life, seen.get((life.who, life.incarnation)))
            seen[life.who, life.incarnation] = life
    return parts


def _go_on(life: Life, earlier: Life | None) -> None:
    """It is the same process as in an earlier part, unless its counts begin anew."""
    if earlier and earlier.marks and life.marks and life.marks[0].step >= earlier.marks[-1].step:
        life.before = earlier.marks[-1]


def _part(records: list[trace.Record], earlier: Part | None) -> Part:
    start = next((record for record in records if isinstance(record, trace.Start)), earlier.start if earlier else None)
    opened = [record for record in records if isinstance(record, trace.Opened) and record.shares]
    fragments = 1 + max((int(getattr(record, "fragment", -1)) for record in records), default=-1)
    if opened:
        shares, numels = opened[-1].shares, opened[-1].numels
    elif earlier and len(earlier.shares) >= fragments:
        shares, numels = earlier.shares, earlier.numels
    else:
        shares, numels = (1 / fragments,) * fragments if fragments else (), ()
    began, ended = records[0].t, records[-1].t
    lives = list(_Census(records).lives)
    for life in lives:
        if life.how == "open":
            life.end(ended, "open")
    return Part(
        records=records, start=start, shares=shares, numels=numels, lives=lives, began=began, ended=ended
    )


class _Census:
    """Reads who lives, record by record."""

    def __init__(self, records: Iterable[trace.Record]) -> None:
        self.lives: list[Life] = []
        self._now: dict[str, Life] = {}
        self._gone: dict[str, Life] = {}
        for record in records:
            if record.who != SYNCER:
                self._read(record)

    def _read(self, record: trace.Record) -> None:
        life = self._now.get(record.who)
        if isinstance(record, trace.Joined):
            self._join(record, life)
        elif isinstance(record, trace.Reborn):
            region = life.region if life else ""
            self._join(trace.Joined(t=record.t, who=record.who, incarnation=record.incarnation, region=region), life)
        elif isinstance(record, trace.Returned):
            if life is None:
                self._begin(record.who, "", record.t)
        elif isinstance(record, trace.Step):
            life = life or self._begin(record.who, "", record.t)
            last = life.marks[-1] if life.marks else Mark(t=record.t, step=0, trained=0)
            step = last.step + 1 if record.step is None else record.step
            more = None if record.tokens is None else (last.trained or 0) + record.tokens
            life.mark(record.t, step, record.trained if record.trained is not None else more)
        elif life is not None:
            self._change(record, life)

    def _join(self, record: trace.Joined, life: Life | None) -> None:
        gone = self._gone.pop(record.who, None)
        if life is not None and record.incarnation.lstrip("0") in ("", life.incarnation.lstrip("0")):
            life.incarnation = record.incarnation or life.incarnation
        elif life is not None and not life.incarnation and not life.marks:
            life.incarnation = record.incarnation  # it was started, and is welcome now
        elif life is None and gone is not None and record.incarnation and record.incarnation == gone.incarnation:
            life = self._now[record.who] = gone
            life.go_on(record.t)
        else:
            if life is not None:
                self._end(life, record.t, "replaced")
            life = self._begin(record.who, record.incarnation, record.t)
        life.region = record.region or life.region

    def _change(self, record: trace.Record, life: Life) -> None:
        if isinstance(record, trace.Killed):
            self._end(life, record.t, "killed")
        elif isinstance(record, trace.Stop):
            self._end(life, record.t, "gone" if record.code else "finished")
        elif isinstance(record, trace.Stopped):
            life.silent.append((record.t, math.inf))
        elif isinstance(record, trace.Continued):
            self._heard(life, record.t)
        elif isinstance(record, trace.Member):
            self._state(record, life)

    def _state(self, record: trace.Member, life: Life) -> None:
        if record.incarnation and record.incarnation.lstrip("0") != life.incarnation.lstrip("0"):
            return  # of the process before: this one has been started, and is not welcome yet
        if record.state == MemberState.SUSPECT:
            life.silent.append((record.t - record.silent_s, math.inf))
        elif record.state == MemberState.GONE:
            self._end(life, record.t - record.silent_s, "gone")
            self._gone[life.who] = life
        elif record.state == MemberState.FINISHED:
            if record.step is not None:
                life.mark(record.t, record.step, record.trained)
            self._end(life, record.t, "finished")
        else:
            self._heard(life, record.t)

    def _heard(self, life: Life, at: float) -> None:
        life.silent = [(a, min(b, at)) for a, b in life.silent]

    def _begin(self, who: str, incarnation: str, at: float) -> Life:
        life = self._now[who] = Life(who=who, incarnation=incarnation, began=at)
        self.lives.append(life)
        return life

    def _end(self, life: Life, at: float, how: str) -> None:
        life.end(at, how)
        del self._now[life.who]


def joined_spans(spans: Iterable[Span]) -> list[Span]:
    """The same moments as spans in order that do not overlap."""
    found: list[Span] = []
    for a, b in sorted(spans):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], b))
        else:
            found.append((a, b))
    return found


def length(spans: Iterable[Span]) -> float:
    """Seconds in spans that do not overlap."""
    return sum(b - a for a, b in spans)


def without(span: Span, holes: Sequence[Span]) -> list[Span]:
    """What is left of a span outside `holes`, which are in order and do not overlap."""
    found, at = [], span[0]
    for a, b in holes:
        if a > at:
            found.append((at, min(a, span[1])))
        at = max(at, b)
    if at < span[1]:
        found.append((at, span[1]))
    return [(a, b) for a, b in found if b > a]
