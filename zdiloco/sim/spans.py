"""What a simulated run comes to, from its trace: the spans of time in which learners trained, and on how many chips.

Rule: every figure is computed from spans and nothing else, so a trace from elsewhere can be judged in the same way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A learner trained from `start_s` on, for `useful_s` seconds, on `chips` chips; the rest up to `end_s` was lost.

    What is lost is the step that a failure broke off.
    """

    start_s: float
    end_s: float
    useful_s: float
    chips: float


Trace = Sequence[Sequence[Span]]
"""The spans of each learner, in the order of time."""


def goodput(trace: Trace, chips: int, seconds: float) -> float:
    """Share of the chip-seconds provided (`chips` for `seconds` seconds) that did training that was not lost."""
    return sum(span.chips * span.useful_s for spans in trace for span in spans) / (chips * seconds)


def uptime(trace: Trace, seconds: float, quorum: int = 1) -> float:
    """Share of the time in which training advances: at least `quorum` learners train."""
    return sum(end - start for start, end, training in _levels(trace, 0.0) if training >= quorum) / seconds


def participants(trace: Trace, grace_s: float = 0.0) -> float:
    """Learners that answer a call at once, on average over the moments at which any does; 0 where none ever does.

    With `grace_s`, those that go on training within so long after the call are among them.
    """
    weighed = total = 0.0
    for start, end, training in _levels(trace, grace_s):
        if training:
            weighed += training * (end - start)
            total += end - start
    return weighed / total if total else 0.0


def _levels(trace: Trace, earlier_s: float) -> Iterable[tuple[float, float, int]]:
    """Stretches of time with how many learners train in them, if each span began `earlier_s` seconds earlier."""
    edges: list[tuple[float, int]] = []
    for spans in trace:
        over = 0.0
        for span in spans:
            start, end = max(span.start_s - earlier_s, over), span.start_s + span.useful_s
            if end > start:
                edges += [(start, 1), (end, -1)]
                over = end
    edges.sort()
    before, training = 0.0, 0
    for at, change in edges:
        if at > before:
            yield before, at, training
        before, training = at, training + change
