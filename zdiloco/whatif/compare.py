"""The same recorded run under several settings, side by side: as recorded, decided again, and decided otherwise.

Rule: the row that decides again under the recorded settings shows how far the others can be believed. All rows end
where the recorded run began to end.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.errors import ConfigError
from zdiloco.goodput import Figures, figures
from zdiloco.lives import Part, parts_of
from zdiloco.whatif.answers import Answers
from zdiloco.whatif.replay import Replay

MOST_ROWS = 64
RECORDED, AGAIN = "recorded", "decided again"
_KNOWN = {field.name: field.default for field in fields(SyncParams)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the comparison. `settings`: those of the grid; `what`: RECORDED, AGAIN or 'what if'."""

    what: str
    settings: dict[str, Any]
    figures: Figures

    def to_obj(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"what": self.what, "settings": self.settings, **self.figures.to_obj()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The values to try of each setting; empty: as recorded."""

    min_quorum: tuple[int, ...] = ()
    gamma: tuple[float, ...] = ()
    sync_period: tuple[int, ...] = ()

    def changes(self) -> list[dict[str, Any]]:
        """Every combination, in order. Raises ConfigError for too many, or a value that is named twice."""
        lists = {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name)}
        for name, values in lists.items():
            if len(set(values)) < len(values):
                raise ConfigError(f"{_flag(name)} names a value twice: {', '.join(map(str, values))}")
        found = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
        if len(found) > MOST_ROWS:
            raise ConfigError(f"{len(found)} combinations are asked for; allowed is {MOST_ROWS}")
        return found if lists else []


def compare(records: Sequence[trace.Record], grid: Grid) -> list[Row]:
    """Decide a recorded run again, under its own settings and under each combination of the grid.

    Raises ConfigError where the trace does not say enough to do so, or a setting cannot be.
    """
    changes = grid.changes()
    parts = [part for part in parts_of(records) if part.merges() and part.lives]
    if not parts:
        raise ConfigError("nothing was merged in this trace: there is no round to decide again")
    recorded = [params_of(part.start) for part in parts]
    learners = len({life.who for part in parts for life in part.lives})
    for change in changes:
        _check(change, learners, recorded[0])
    untils = [_until(part) for part in parts]
    cut = [_cut(part.records, until) for part, until in zip(parts, untils, strict=True)]
    own = {name: getattr(recorded[0], name) for name in (field.name for field in fields(Grid))}
    rows = [Row(what=RECORDED, settings=own, figures=_figures(cut))]
    answers = [Answers(part) for part in parts]
    for what, change in [(AGAIN, {}), *(("what if", change) for change in changes)]:
        told = [
            Replay(part, replace(params, **change), answer, until).run()
            for part, params, answer, until in zip(parts, recorded, answers, untils, strict=True)
        ]
        rows.append(Row(what=what, settings={**own, **change}, figures=_figures(told)))
    return rows


def _figures(pieces: Iterable[Sequence[trace.Record]]) -> Figures:
    return figures([part for piece in pieces for part in parts_of(piece)])


def _cut(records: Sequence[trace.Record], until: float) -> list[trace.Record]:
    return [*(record for record in records if record.t <= until), trace.End(t=until)]


def _until(part: Part) -> float:
    """Where a run begins to end, or its syncer dies: from there on it is not decided again."""
    ending = (
        record.t
        for record in part.records
        if isinstance(record, trace.Ending) or (isinstance(record, trace.Killed) and record.who == trace.SYNCER)
    )
    return next(ending, part.ended)


def params_of(start: trace.Start | None) -> SyncParams:
    """The settings that a trace was recorded under, as its start tells them. Raises: ConfigError where it does not."""
    if start is None or start.sync is None:
        raise ConfigError("this trace does not say under which settings it was recorded: its start holds no 'sync'")
    strange = sorted(set(start.sync) - set(_KNOWN))
    if strange:
        raise ConfigError(f"this trace was recorded by another version: it knows no sync.{strange[0]}")
    wrong = [name for name, value in start.sync.items() if not _fits(value, _KNOWN[name])]
    if wrong:
        raise ConfigError(f"this trace says that sync.{wrong[0]} was {start.sync[wrong[0]]!r}: it cannot be")
    settings: dict[str, Any] = dict(start.sync)
    return SyncParams(**settings)


def _fits(value: object, default: object) -> bool:
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)


def _check(change: dict[str, Any], learners: int, params: SyncParams) -> None:
    quorum = change.get("min_quorum", 1)
    if quorum > learners:
        raise ConfigError(f"--min-quorum is {quorum}, but only {learners} learners are in this trace")
    try:
        replace(params, **change)
    except ConfigError as error:
        name = next((name for name in change if f"sync.{name} " in str(error)), "")
        raise ConfigError(f"{_flag(name)}: {error}" if name else str(error)) from error


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
