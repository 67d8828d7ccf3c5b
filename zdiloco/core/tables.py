"""The state tables and the words of the protocol as Markdown: the part of docs/protocol.md that nobody writes by hand.

Rule: the machines' own tables and the docstrings of their enums are the only source, so the docs cannot say otherwise.
No machine imports this file. `python -m zdiloco.core.tables` prints it.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from zdiloco.core import borrowing, bundling, duty, joining, loans, membership, rounds, start
from zdiloco.core.bundles import Unbundling
from zdiloco.core.norms import Remark
from zdiloco.core.progress import Fate, Refusal


class Unwelcomes(StrEnum):
    """Why a process is not taken in (`Unwelcome.reason`); its text says what to do."""

    RUN = "run"
    """It belongs to another run, by its id or its name: it ends."""
    LAYOUT = "layout"
    """Its model has another layout: it ends."""
    DONATION = "donation"
    """Its initial values or its layout make no sense: it ends."""
    REPLACED = "replaced"
    """A newer process of its name has joined: it ends."""
    UNKNOWN = "unknown"
    """This syncer does not know it (any more): it says hello again."""
    NAME = "name"
    """A process of its name was heard a moment ago: when it says hello again, it takes that one's place."""
    VERSION = "version"
    """It speaks another version of the protocol, and so reads no more of this than that: it ends."""
    KEY = "key"
    """Its key may not bear its name, or, as its own process says, whom it dials does not let it in: it ends."""
    STARTING = "starting"
    """The syncer has no sealed epoch yet: it says hello again a little later."""
    ROOM = "room"
    """The relay that it dials has as many learners as it may have: it says hello again a little later."""
    BANNED = "banned"
    """It has sent too much of what is no message, not its to say, or beyond a limit: for a while nothing is read."""


Table = Mapping[tuple[Any, Any], StrEnum]
"""(state, event) -> next state."""

MACHINES: tuple[tuple[str, str, type[StrEnum], Table], ...] = (
    ("A round", "`core/rounds.py`, at the syncer, one per fragment at most.", rounds.RoundState, rounds.TABLE),
    ("A member", "`core/membership.py`, at the syncer, one per name.", membership.MemberState, membership.TABLE),
    ("The syncer", "`core/start.py`.", start.SyncerPhase, start.TABLE),
    ("A contribution", "`core/duty.py`, at the learner, one per fragment.", duty.DutyState, duty.TABLE),
    ("The learner", "`core/joining.py`.", joining.LearnerPhase, joining.TABLE),
    ("A loan", "`core/loans.py`, at the syncer, one at a time; what is over is no more.", loans.LoanState, loans.TABLE),
    ("Borrowing", "`core/borrowing.py`, at the learner.", borrowing.BorrowState, borrowing.TABLE),
    ("Bundling", "`core/bundling.py`, at a relay, one per contribution that it keeps.", bundling.Stage, bundling.TABLE),
)
"""Title, where it lives, states and table of every machine that has one."""

WORDS: tuple[tuple[str, str, type[StrEnum]], ...] = (
    ("Why a contribution is refused", "`Refused.reason`.", Refusal),
    ("What is found about a merged one", "`Ack.remark`.", Remark),
    ("Why a bundle is not taken", "`Unbundled.reason`.", Unbundling),
    ("What an update means for the learner's own work", "Judged when the update is here.", Fate),
    ("Why a process is not taken in", "`Unwelcome.reason`.", Unwelcomes),
)
"""Title, where it is said, and the words."""


def meanings(words: type[StrEnum]) -> dict[str, str]:
    """Member name of an enum -> the docstring below it, on one line; empty where there is none."""
    tree = ast.parse(inspect.getsource(words)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {name: "" for name in words.__members__}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(before.targets[0], ast.Name) and isinstance(after, ast.Expr):
            found[before.targets[0].id] = " ".join(str(ast.literal_eval(after.value)).split())
    return found


def rows(*columns: tuple[str, ...]) -> list[str]:
    """A Markdown table: the head, then one line per row."""
    head, *rest = (f"| {' | '.join(cells)} |" for cells in columns)
    return [head, "|" + "---|" * len(columns[0]), *rest, ""]


def machine(title: str, place: str, states: type[StrEnum], table: Table) -> list[str]:
    """The states of one machine with their meanings, then every move; what is not listed cannot happen."""
    told = meanings(states)
    known = [("state", "means"), *((f"`{state}`", told[state.name]) for state in states)]
    ordered = sorted(table, key=lambda move: list(states).index(move[0]))
    moves = [("from", "when", "to"), *((f"`{a}`", str(event), f"`{table[a, event]}`") for a, event in ordered)]
    return [f"### {title}", place, "", *rows(*known), *rows(*moves)]


def vocabulary(title: str, place: str, words: type[StrEnum]) -> list[str]:
    """One list of words with their meanings."""
    told = meanings(words)
    return [f"### {title}", place, "", *rows(("word", "means"), *((f"`{word}`", told[word.name]) for word in words))]


def markdown() -> str:
    """All tables, ending with one newline; the same text for the same source."""
    parts = [line for entry in MACHINES for line in machine(*entry)]
    parts += [line for entry in WORDS for line in vocabulary(*entry)]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
