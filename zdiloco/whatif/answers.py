"""How each learner answered the calls of a recorded run, and how long merges took: looked up by the moment of a call.

Rule: the answer to a call is the one that this learner gave to the recorded call of the same fragment that was nearest
in time; of one that never answered, on that fragment or at all, it is what is usual.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from zdiloco import trace
from zdiloco.lives import Part

Found = TypeVar("Found")
SAME_CALL_S = 0.001
"""Two moments so close together are those of one call, told in two ways."""


@dataclass(slots=True)
class Answer:
    """What came of one call, in seconds since then; None: that did not happen, or is not told.

    `reason`: of a decline. `cut_at`: when and at which inner step the contribution was offered, in the recording.
    """

    declined_s: float | None = None
    reason: str = ""
    offer_s: float | None = None
    answer_s: float | None = None
    cut_at: tuple[float, int] | None = None


class Answers:
    """Those of one part of a trace."""

    def __init__(self, part: Part) -> None:
        self._by_call: dict[tuple[str, int], dict[float, Answer]] = {}
        called: dict[tuple[int, int], float] = {}
        for record in part.records:
            if isinstance(record, trace.Call):
                called[record.fragment, record.version] = record.t
            elif isinstance(record, trace.Arrived | trace.Declined):
                self._take(record, called.get((record.fragment, record.version)))
        self._sorted = {place: sorted(found.items()) for place, found in self._by_call.items()}
        self._of_learner: dict[str, list[tuple[float, Answer]]] = {}
        for (who, _), found in self._sorted.items():
            self._of_learner.setdefault(who, []).extend(found)
        for found in self._of_learner.values():
            found.sort(key=lambda each: each[0])
        known = [a.answer_s for each in self._by_call.values() for a in each.values() if a.answer_s is not None]
        self._usual = Answer(answer_s=median(known) if known else 0.0)
        self._adoption_s = _adoptions(part)
        self._sync_s = _nearest_of((r.fragment, r.t, r.sync_s) for r in part.records if isinstance(r, trace.Published))
        self._nbytes: dict[int, int] = {}
        for record in part.records:
            if isinstance(record, trace.Arrived):
                self._nbytes[record.fragment] = max(record.nbytes, self._nbytes.get(record.fragment, 0))

    def _take(self, record: trace.Arrived | trace.Declined, called_at: float | None) -> None:
        if isinstance(record, trace.Arrived) and record.answer_s is not None:
            measured = record.t - record.answer_s
            if called_at is None or abs(called_at - measured) > SAME_CALL_S:
                called_at = measured
        if called_at is None:
            return
        answer = self._by_call.setdefault((record.who, record.fragment), {}).setdefault(called_at, Answer())
        if isinstance(record, trace.Declined):
            answer.declined_s, answer.reason = record.t - called_at, record.reason
        elif answer.answer_s is None:
            answer.answer_s, answer.offer_s = record.t - called_at, record.offer_s
            if record.offer_s is not None and record.cut_step is not None:
                answer.cut_at = (called_at + record.offer_s, record.cut_step)

    def of(self, who: str, fragment: int, called_at: float) -> Answer:
        """How this learner answers a call of this moment.

        Where it only declined, since others closed that round, it would have answered when it next did.
        """
        found = self._sorted.get((who, fragment)) or self._of_learner.get(who)
        if not found:
            return self._usual
        at, answer = nearest_moment(found, called_at)
        if answer.answer_s is not None:
            return answer
        later = found[bisect_right(found, at, key=lambda each: each[0]) :]
        answer_s = next((moment - at + each.answer_s for moment, each in later if each.answer_s is not None), None)
        return replace(answer, answer_s=self._usual.answer_s if answer_s is None else answer_s)

    def sync_s(self, fragment: int, closed_at: float) -> float:
        """From the close of a round to its publication."""
        found = self._sync_s.get(fragment) or self._sync_s.get(-1)
        return nearest(found, closed_at) if found else 0.0

    def adoption_s(self, who: str) -> float:
        """From a publication to its adoption, where that is told; else it is adopted at the next step boundary."""
        return self._adoption_s.get(who, 0.0)

    def nbytes(self, fragment: int) -> int:
        """Size of a contribution to this fragment."""
        return self._nbytes.get(fragment, 0)


def nearest(found: Sequence[tuple[float, Found]], at: float) -> Found:
    """The value whose moment is nearest; `found` is not empty, and in order of its moments."""
    return nearest_moment(found, at)[1]


def nearest_moment(found: Sequence[tuple[float, Found]], at: float) -> tuple[float, Found]:
    """The same, with its moment."""
    index = bisect_left(found, at, key=lambda each: each[0])
    around = found[max(0, index - 1) : index + 1]
    return min(around, key=lambda each: abs(each[0] - at))


def _nearest_of(triples: Iterable[tuple[int, float, float]]) -> dict[int, list[tuple[float, float]]]:
    """By fragment, and under -1 of all, (moment, value) in order."""
    found: dict[int, list[tuple[float, float]]] = {}
    for fragment, at, value in triples:
        found.setdefault(fragment, []).append((at, value))
        found.setdefault(-1, []).append((at, value))
    return found


def _adoptions(part: Part) -> dict[str, float]:
    """The median time from publication to adoption of every learner that tells of it."""
    published: dict[tuple[int, int], float] = {}
    took: dict[str, list[float]] = {}
    for record in part.records:
        if isinstance(record, trace.Published):
            published[record.fragment, record.version] = record.t
        elif isinstance(record, trace.Adopted):
            at = published.get((record.fragment, record.version))
            if at is not None:
                took.setdefault(record.who, []).append(record.t - at)
    return {who: median(each) for who, each in took.items()}
