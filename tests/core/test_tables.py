"""The state tables: what is printed is what the docs hold, and no machine ever leaves them whatever peers say."""

import ast
import collections
import functools
import pathlib
import runpy
import sys
from enum import StrEnum
from typing import Any

import pytest

from tests.core.chatter import Chatter, LearnerChatter, SyncerChatter
from zdiloco.core import borrowing, bundling, duty, joining, loans, membership, rounds, start, tables
from zdiloco.core.progress import Refusal

ROOT = pathlib.Path(__file__).parents[2]
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"
NAMES = [title for title, *_ in tables.MACHINES]


@functools.cache
def core_trees() -> dict[str, ast.Module]:
    """Module name -> its syntax tree."""
    return {path.stem: ast.parse(path.read_text()) for path in sorted((ROOT / "zdiloco" / "core").glob("*.py"))}


# ---- what is printed


def test_the_docs_hold_what_is_printed() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    held = text.partition(BEGIN)[2].partition(END)[0]
    assert held.strip() == tables.markdown().strip(), "print it again: python -m zdiloco.core.tables"


def test_the_module_prints_itself(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(tables.__file__, run_name="__main__")
    assert capsys.readouterr().out == tables.markdown()


def test_every_move_of_every_machine_is_printed() -> None:
    lines = tables.markdown().splitlines()
    for *_, table in tables.MACHINES:
        for (state, event), then in table.items():
            assert f"| `{state}` | {event} | `{then}` |" in lines


WORDS = [states for _, _, states, _ in tables.MACHINES] + [words for _, _, words in tables.WORDS]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.__name__)
def test_every_word_says_what_it_means(words: type[StrEnum]) -> None:
    told = tables.meanings(words)
    assert list(told) == list(words.__members__)
    for name, meaning in told.items():
        assert meaning.endswith("."), f"{words.__name__}.{name} has no docstring"
        assert "|" not in meaning


def test_the_words_of_unwelcome_are_those_that_the_syncer_says() -> None:
    said = {
        keyword.value.value
        for tree in core_trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Unwelcome"
        for keyword in node.keywords
        if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant)
    }
    elsewhere = {  # node/reading.py, which reads bytes; a relay; a process to itself, and again node/reading.py
        tables.Unwelcomes.VERSION, tables.Unwelcomes.ROOM, tables.Unwelcomes.KEY, tables.Unwelcomes.BANNED,
    }  # fmt: skip
    assert said == {*tables.Unwelcomes} - elsewhere


def test_every_word_of_refusal_is_said_by_somebody() -> None:
    """By name in core, except what only a body finds out by looking at the bytes."""
    said = {
        node.attr
        for tree in core_trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Refusal"
    }
    assert said == set(Refusal.__members__)


# ---- the tables themselves

FIRST = {
    "A round": {rounds.RoundState.OPEN},
    "A member": {membership.MemberState.JOINING, membership.MemberState.WATCHING},
    "The syncer": {start.SyncerPhase.EMPTY, start.SyncerPhase.RECOVERING},
    "A contribution": {duty.DutyState.IDLE},
    "The learner": {joining.LearnerPhase.HAILING},
    "A loan": {loans.LoanState.ASKED},
    "Borrowing": {borrowing.BorrowState.IDLE},
    "Bundling": {bundling.Stage.COMING},
}
LAST = {
    "A round": {rounds.RoundState.PUBLISHED, rounds.RoundState.VOID},
    "A member": {membership.MemberState.FINISHED},
    "The syncer": {start.SyncerPhase.STOPPED},
    "A contribution": set(),
    "The learner": {joining.LearnerPhase.STOPPED},  # by `Stop`, from anywhere
    "A loan": {loans.LoanState.SERVED},  # and then it is over, as it may be before
    "Borrowing": {borrowing.BorrowState.OVER},
    "Bundling": {bundling.Stage.FORWARDED},  # and then it is settled, as it may be before
}
EVENTS = {
    "A round": rounds.RoundEvent,
    "A member": membership.MemberEvent,
    "The syncer": start.SyncerTurn,
    "A contribution": duty.DutyEvent,
    "The learner": joining.LearnerTurn,
    "A loan": loans.LoanEvent,
    "Borrowing": borrowing.BorrowEvent,
    "Bundling": bundling.StageEvent,
}


def test_every_table_is_printed() -> None:
    """A module of core with a TABLE of its own that is not printed would be a machine without docs."""
    printed = [table for *_, table in tables.MACHINES]
    found = [
        name
        for name, tree in core_trees().items()
        if any(isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TABLE" for node in tree.body)
    ]
    modules = [sys.modules[f"zdiloco.core.{name}"] for name in found]
    assert len(modules) == len(printed)
    assert all(any(module.TABLE is table for table in printed) for module in modules)


@pytest.mark.parametrize(("title", "states", "table"), [(t, s, m) for t, _, s, m in tables.MACHINES], ids=NAMES)
def test_every_state_can_be_reached_and_left(title: str, states: type[StrEnum], table: tables.Table) -> None:
    reached = set(FIRST[title])
    for _ in states:
        reached |= {then for (state, _), then in table.items() if state in reached}
    assert reached | LAST[title] == set(states)
    assert {state for state, _ in table} == set(states) - LAST[title]
    assert {event for _, event in table} == set(EVENTS[title]), "an event that nothing can raise is none"


# ---- the machines and their tables


class Recording(dict[Any, Any]):
    """A table that remembers which of its rows were used."""

    def __init__(self, table: tables.Table) -> None:
        super().__init__(table)
        self.used: collections.Counter[Any] = collections.Counter()

    def __getitem__(self, move: Any) -> Any:
        self.used[move] += 1
        return super().__getitem__(move)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recording]:
    """Title -> its table, recording, in every module of core that holds it."""
    made = {title: (table, Recording(table)) for title, _, _, table in tables.MACHINES}
    core = [module for name, module in sys.modules.items() if name.startswith("zdiloco.core.")]
    places = [(module, attribute, value) for module in core for attribute, value in vars(module).items()]
    for table, recording in made.values():
        for module, attribute, _ in (place for place in places if place[2] is table):
            monkeypatch.setattr(module, attribute, recording)
    return {title: recording for title, (_, recording) in made.items()}


def talk(kind: type[Chatter], seeds: int, turns: int) -> set[Any]:
    """Let them talk; whatever a machine raises is a failure. Returns the phases that were seen."""
    seen: set[Any] = set()
    for seed in range(seeds):
        chatter = kind(seed)
        try:
            for _ in range(turns):
                chatter.turn()
        except Exception as fault:
            raise AssertionError(f"{kind.__name__} seed {seed} at {chatter.now}: {fault!r}") from fault
        seen |= chatter.states
    return seen


def visited(recording: Recording) -> set[Any]:
    return {state for state, _ in recording.used} | {recording.get(move) for move in recording.used}


def test_nothing_that_a_fleet_says_takes_a_syncer_off_its_tables(recorded: dict[str, Recording]) -> None:
    assert talk(SyncerChatter, 100, 400) == set(start.SyncerPhase)
    assert visited(recorded["A round"]) == set(rounds.RoundState)
    assert visited(recorded["A member"]) == set(membership.MemberState)
    assert visited(recorded["The syncer"]) == set(start.SyncerPhase)
    assert visited(recorded["A loan"]) == set(loans.LoanState)


def test_nothing_that_a_syncer_says_takes_a_learner_off_its_tables(recorded: dict[str, Recording]) -> None:
    assert talk(LearnerChatter, 40, 400) == set(joining.LearnerPhase)
    assert visited(recorded["A contribution"]) == set(duty.DutyState)
    assert visited(recorded["Borrowing"]) == set(borrowing.BorrowState)
    assert visited(recorded["The learner"]) >= set(joining.LearnerPhase) - {joining.LearnerPhase.STOPPED}
