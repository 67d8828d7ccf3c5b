"""Whether the rounds of a measurement were those that it claims: read from the syncer's journal, so from outside.

A learner costs nothing if it does nothing. So a figure counts only if nearly all rounds that were opened meanwhile
merged this learner's work, and each fragment was called as often as H asks for. The journal's times and those of the
stand-in are of one clock: the kernel's monotonic one is the same in all processes of a machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_SHARE = 0.95
SLACK_STEPS = 2.0
Span = tuple[float, float]
"""A stretch of time, in monotonic seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """What happened within some spans. `apart_steps`: mean between two calls of a fragment; None: no two were seen.

    `others_tokens`: merged tokens of other learners in these rounds.
    """

    opened: int
    with_us: int
    apart_steps: float | None
    others_tokens: int

    @property
    def share(self) -> float:
        """Rounds that merged this learner's work ÷ rounds opened."""
        return self.with_us / self.opened if self.opened else 0.0

    @property
    def words(self) -> str:
        """The two measures of soundness, for people."""
        apart = "unknown" if self.apart_steps is None else f"{self.apart_steps:.1f}"
        return f"{self.with_us} of {self.opened} rounds, {apart} steps apart"

    def to_obj(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "rounds": self.opened,
            "rounds_with_us": self.with_us,
            "call_steps": self.apart_steps,
            "others_tokens": self.others_tokens,
        }

    def void(self, sync_period: int) -> str:
        """Why a figure over these rounds says nothing; empty: it counts."""
        if not self.opened:
            return "no round was opened"
        if self.share < LEAST_SHARE:
            return f"{self.with_us} of {self.opened} rounds merged this learner's work, at least 95 % must"
        if self.apart_steps is None:
            return "no fragment was called twice"
        most = sync_period + SLACK_STEPS
        if self.apart_steps > most:
            return f"calls of a fragment came {self.apart_steps:.1f} steps apart, at most {most:g} are allowed"
        return ""


def rounds_within(
    journal: Iterable[Mapping[str, Any]], name: str, spans: Sequence[Span], step_s: float, still_open: Sequence[float]
) -> Rounds:  # fmt: skip
    """Count the rounds that were called within the spans. `step_s`: of this learner, to tell seconds in steps.

    `still_open`: when the rounds were called that had not closed at the end; they count as opened, without us. Rounds
    that a killed syncer took along are in no journal. Two calls are compared only within one span and one epoch.
    """
    opened = with_us = others = 0
    last: dict[tuple[int, int, int], float] = {}
    gaps: list[float] = []
    for line in journal:
        if line["kind"] != "merge":
            continue
        called_at = line["t"] - line["quorum_s"] - line["grace_s"]
        index = _span_of(called_at, spans)
        if index is None:
            continue
        tokens = {member[0]: member[3] for member in line["members"]}
        opened += 1
        with_us += name in tokens
        others += sum(count for who, count in tokens.items() if who != name)
        place = (index, line["epoch"], line["fragment"])
        if place in last:
            gaps.append(called_at - last[place])
        last[place] = called_at
    opened += sum(_span_of(called_at, spans) is not None for called_at in still_open)
    apart = sum(gaps) / len(gaps) / step_s if gaps else None
    return Rounds(opened=opened, with_us=with_us, apart_steps=apart, others_tokens=others)


def open_calls(status: Mapping[str, Any], now: float) -> list[float]:
    """When the rounds were called that a status, asked for at `now`, shows as not closed."""
    rounds = [fragment["round"] for fragment in status.get("fragments", ())]
    return [now - found["age_s"] for found in rounds if found and found["state"] in ("open", "grace", "parked")]


def _span_of(at: float, spans: Sequence[Span]) -> int | None:
    return next((index for index, (began, ended) in enumerate(spans) if began <= at <= ended), None)
