"""How well a run used its learners, from its trace: goodput, participation, staleness, quorum, grace, answers.

Rule: figures are sums over what the trace says, real or simulated; what it does not say is None. The definitions are
in docs/operating.md.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zdiloco import trace
from zdiloco.lives import Life, Part, joined_spans, length, parts_of, without

Taken = tuple[trace.Merge, trace.Part]
"""A merge, and one contribution in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Mean, 90th percentile (nearest rank) and largest of some numbers; of none there is no spread."""

    mean: float
    p90: float
    most: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerFigures:
    """One learner, all its processes together. Tokens are weighed by parameter share.

    `seconds`: it lived; of these `stalled_s` without a step. `dead_s`: between a death and its return or the end.
    `rounds`: that merged something of it, of the `of_rounds` that closed while it trained (or hold work that it left);
    `late`: answers after the close.
    """

    name: str
    processes: int
    seconds: float
    stalled_s: float
    dead_s: float
    steps: int
    trained: int | None
    merged_tokens: float
    merged_share: float | None
    rounds: int
    of_rounds: int
    staleness: Spread | None
    answer_s: Spread | None
    late: int
    declined: int

    @property
    def participation(self) -> float | None:
        """Rounds that merged something of it ÷ rounds that could have."""
        return self.rounds / self.of_rounds if self.of_rounds else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """A run. `goodput`: learner-seconds whose work was merged ÷ learner-seconds provided; `uptime`: share of the time
    in which anybody trained; `participants`: contributions of a round; `period_s`: between two calls of a fragment.
    """

    seconds: float
    rounds: int
    goodput: float | None
    uptime: float | None
    participation: float | None
    participants: Spread | None
    staleness: Spread | None
    quorum_s: Spread | None
    grace_s: Spread | None
    sync_s: Spread | None
    period_s: Spread | None
    merged_tokens: float
    lost_lines: int
    learners: tuple[LearnerFigures, ...]

    def to_obj(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        learners = [{**asdict(each), "participation": each.participation} for each in self.learners]
        return {**asdict(self), "learners": learners}


def spread(numbers: Iterable[float]) -> Spread | None:
    """Mean, 90th percentile and largest; None of nothing."""
    ordered = sorted(numbers)
    if not ordered:
        return None
    rank = -(-9 * len(ordered) // 10) - 1
    return Spread(mean=sum(ordered) / len(ordered), p90=ordered[max(0, rank)], most=ordered[-1])


def figures_of(records: Sequence[trace.Record]) -> Figures:
    """The figures of a whole trace, all its parts together."""
    return figures(parts_of(records))


class Book:
    """One part of a trace, sorted by learner, so that a large fleet is read once."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.merges = part.merges()
        self.closed_at = [merge.t for merge in self.merges]
        self.told: dict[str, list[trace.Record]] = {}
        for record in part.records:
            self.told.setdefault(record.who, []).append(record)
        self.deaths = part.deaths()
        self._merged: dict[tuple[str, str], list[Taken]] = {}
        known = {(life.who, life.incarnation) for life in part.lives}
        for merge in self.merges:
            for member in merge.members:
                place = (member.name, member.incarnation)
                place = place if place in known else (member.name, "")
                self._merged.setdefault(place, []).append((merge, member))

    def taken(self, life: Life) -> list[Taken]:
        """The merges that hold something of this process, and what."""
        return self._merged.get((life.who, life.incarnation), [])

    def merged(self, life: Life, *, steps: bool = False) -> float:
        """Its merged tokens (or steps), weighed by parameter share."""
        share = self.part.share
        return sum(share(merge.fragment) * (each.steps if steps else each.tokens) for merge, each in self.taken(life))

    def merged_share(self, life: Life) -> float:
        """Which share of what a process has trained was merged, in tokens (in steps, where no tokens are told)."""
        if life.trained:
            return min(1.0, self.merged(life) / life.trained)
        return min(1.0, self.merged(life, steps=True) / life.steps) if life.steps else 0.0

    def closed_during(self, life: Life) -> int:
        """Rounds that closed while a process lived and had made a step, or that hold something of it all the same."""
        if not life.marks:
            return 0
        first, last = life.marks[0].t, life.ended
        outside = sum(not first <= merge.t <= last for merge, _ in self.taken(life))
        return max(0, bisect_right(self.closed_at, last) - bisect_left(self.closed_at, first)) + outside

    def late(self) -> dict[str, int]:
        """By learner, the contributions that came when their round was closed."""
        closed: dict[int, int] = {}
        late: dict[str, int] = {}
        for record in self.part.records:
            if isinstance(record, trace.Merge):
                closed[record.fragment] = record.version
            elif isinstance(record, trace.Arrived) and record.version <= closed.get(record.fragment, -1):
                late[record.who] = late.get(record.who, 0) + 1
        return late


def figures(parts: Sequence[Part]) -> Figures:
    """The figures of some parts together."""
    books = [Book(part) for part in parts]
    merges = [merge for book in books for merge in book.merges]
    learners = tuple(_learners(books))
    provided = sum(each.seconds for each in learners)
    useful = sum(life.seconds * book.merged_share(life) for book in books for life in book.part.lives)
    seconds = sum(part.ended - part.began for part in parts)
    training = sum(length(_anybody(part)) for part in parts)
    of_rounds = sum(each.of_rounds for each in learners)
    published = (r for part in parts for r in part.records if isinstance(r, trace.Published))
    return Figures(
        seconds=seconds,
        rounds=len(merges),
        goodput=useful / provided if provided else None,
        uptime=training / seconds if seconds else None,
        participation=sum(each.rounds for each in learners) / of_rounds if of_rounds else None,
        participants=spread(len(merge.members) for merge in merges),
        staleness=spread(member.staleness for merge in merges for member in merge.members if member.staleness >= 0),
        quorum_s=spread(merge.quorum_s for merge in merges if merge.quorum_s is not None),
        grace_s=spread(merge.grace_s for merge in merges if merge.grace_s is not None),
        sync_s=spread(record.sync_s for record in published),
        period_s=spread(gap for part in parts for gap in _periods(part)),
        merged_tokens=sum(each.merged_tokens for each in learners),
        lost_lines=sum(r.lost_lines for part in parts for r in part.records if isinstance(r, trace.End)),
        learners=learners,
    )


def _periods(part: Part) -> list[float]:
    """Seconds between two calls of the same fragment."""
    last: dict[int, float] = {}
    gaps = []
    for record in part.records:
        if isinstance(record, trace.Call):
            if record.fragment in last:
                gaps.append(record.t - last[record.fragment])
            last[record.fragment] = record.t
    return gaps


def _anybody(part: Part) -> list[tuple[float, float]]:
    """When at least one learner made steps."""
    spans = []
    for life in part.lives:
        if life.marks:
            spans += without((min(life.marks[0].t, life.ended), life.ended), life.stalls())
    return joined_spans(spans)


def _learners(books: Sequence[Book]) -> Iterator[LearnerFigures]:
    lives: dict[str, list[tuple[Book, Life]]] = {}
    for book in books:
        for life in book.part.lives:
            lives.setdefault(life.who, []).append((book, life))
    late = [book.late() for book in books]
    for name in sorted(lives):
        told = [record for book in books for record in book.told.get(name, ())]
        yield _learner(name, lives[name], told, sum(each.get(name, 0) for each in late))


def _learner(name: str, mine: Sequence[tuple[Book, Life]], told: Sequence[trace.Record], late: int) -> LearnerFigures:
    found = [member for book, life in mine for _, member in book.taken(life)]
    answers = [record.answer_s for record in told if isinstance(record, trace.Arrived)]
    seconds = sum(life.seconds for _, life in mine)
    known = [life.trained for _, life in mine if life.trained is not None]
    useful = sum(life.seconds * book.merged_share(life) for book, life in mine)
    books = {id(book): book for book, _ in mine}.values()
    return LearnerFigures(
        name=name,
        processes=len(mine),
        seconds=seconds,
        stalled_s=sum(length(life.stalls()) for _, life in mine),
        dead_s=sum(length(book.deaths[name]) for book in books),
        steps=sum(life.steps for _, life in mine),
        trained=sum(known) if known else None,
        merged_tokens=sum(book.merged(life) for book, life in mine),
        merged_share=useful / seconds if seconds else None,
        rounds=len(found),
        of_rounds=sum(book.closed_during(life) for book, life in mine),
        staleness=spread(member.staleness for member in found if member.staleness >= 0),
        answer_s=spread(answer for answer in answers if answer is not None),
        late=late,
        declined=sum(isinstance(record, trace.Declined) for record in told),
    )
