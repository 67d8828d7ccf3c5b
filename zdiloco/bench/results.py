"""One figure of a measurement, the bars that it has to meet, and what becomes of it in JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """`ours` and `reference` in `unit`, measured in one run. `bound`: of their ratio; None: there is no bar.

    `void`: why the figure says nothing; empty: it counts. `missed`: other bars that it does not meet, in words.
    `details`: plain values for JSON; `remark`: the same for people.
    """

    name: str
    ours: float
    reference: float
    unit: str
    better: str
    bound: float | None
    void: str = ""
    missed: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""

    @property
    def ratio(self) -> float:
        """Ours ÷ reference."""
        return self.ours / self.reference

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it does not pass, one line each; empty: it does. Without a bar nothing is asked of it."""
        if self.bound is None:
            return ()
        if self.void:
            return (f"{self.name} is void: {self.void}",)
        faults = tuple(f"{self.name}: {what}" for what in self.missed)
        met = self.ratio >= self.bound if self.better == "higher" else self.ratio <= self.bound
        if met:
            return faults
        word = "at least" if self.better == "higher" else "at most"
        return (f"{self.name}: {self.ratio:.3f}, {word} {self.bound:g} is asked for", *faults)

    def to_obj(self) -> dict[str, Any]:
        """As plain values. `counts`: it is not void."""
        return {
            "name": self.name,
            "ours": self.ours,
            "reference": self.reference,
            "unit": self.unit,
            "ratio": self.ratio,
            "better": self.better,
            "bound": self.bound,
            "counts": not self.void,
            "void": self.void,
            "passed": not self.faults,
            **self.details,
        }
