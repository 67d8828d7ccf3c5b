"""One-line mutations of the rules of the core, each put into the running function's code and taken out again.

Rule: a mutation names the function and the text that it replaces; where the text is not there exactly once, it fails.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from zdiloco.core import (
    borrowing,
    desk,
    ending,
    finishing,
    grace,
    intake,
    lending,
    loans,
    membership,
    outflow,
    pace,
    progress,
    reception,
    rounds,
    start,
    syncer,
)


class DoesNotFit(AssertionError):
    """The source has changed: the mutation must be written anew."""


@dataclass(frozen=True)
class Mutation:
    """`rule`: what it breaks. `place`: the function, or property, that it changes: `old` is replaced by `new`."""

    rule: str
    place: Callable[..., Any] | property
    old: str
    new: str

    @property
    def function(self) -> FunctionType:
        found = self.place.fget if isinstance(self.place, property) else self.place
        assert isinstance(found, FunctionType)
        return found


def mutated_code(mutation: Mutation) -> Any:
    """The code of the changed function. Raises DoesNotFit."""
    function = mutation.function
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(mutation.old)
    if count != 1:
        name = f"{function.__module__}.{function.__qualname__}"
        raise DoesNotFit(f"{mutation.rule}: {mutation.old!r} stands {count} times in {name}, must be once")
    tree = ast.parse(source.replace(mutation.old, mutation.new))
    made = tree.body[0]
    assert isinstance(made, ast.FunctionDef)
    made.decorator_list = []
    space = dict(function.__globals__)
    exec(compile(tree, f"<{mutation.rule}>", "exec"), space)
    code = space[made.name].__code__
    if code.co_freevars != function.__code__.co_freevars or code == function.__code__:
        raise DoesNotFit(f"{mutation.rule}: nothing has changed, or its names are not those of before")
    return code


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """The rule is broken meanwhile, for everybody who calls the function by whatever name."""
    function = mutation.function
    before, function.__code__ = function.__code__, mutated_code(mutation)
    try:
        yield
    finally:
        function.__code__ = before


_Intake, _Learner = progress.Intake, progress.LearnerProgress
MUTATIONS = (
    Mutation("due: the last call does not count", pace.Standing.due_at,
             "self.calls.kth(quorum)", "-math.inf"),
    Mutation("due: the fastest alone makes it due", pace.Standing.due_at,
             "self.cuts.kth(quorum)", "self.cuts.kth(1)"),
    Mutation("due: half of H is enough", pace.needed_steps,
             "return params.sync_period", "return params.sync_period // 2"),
    Mutation("due: what was reckoned at a call stays", membership.Member.report, "self.reckoned.items()", "()"),
    Mutation("due: an offer's cut is a report", syncer.SyncerMachine._contribution,
             "desk = self._desk_of", "member.first_step or member.report(message.cut_step, now); desk = self._desk_of"),
    Mutation("quarantine: who offends or behaves again is not judged at once", syncer.SyncerMachine._run,
             "if self.desk.stirred", "if changed"),
    Mutation("grace: no floor of one step", grace.grace_ends,
             "floor = max(inputs.waiting_steps_s, default=0.0)", "floor = 0.0"),
    Mutation("quorum: one fewer is enough", rounds.decide,
             "len(seen.held) < seen.quorum", "len(seen.held) < seen.quorum - 1"),
    Mutation("held: those held are waited for", desk.Desk.place,
             "absent = not held and", "absent = not fresh and"),
    Mutation("held: they start the grace window", rounds.has_quorum, "len(seen.fresh)", "len(seen.held)"),
    Mutation("held: a call forgets them", desk.Desk._open, "desk.calls[version] = now", "desk.intake.held.clear()"),
    Mutation("held: they are merged twice", _Intake.close, "self.held.clear()", "pass"),
    Mutation("fencing: a higher epoch stops nobody", syncer.SyncerMachine._message,
             "message.epoch > self.epoch", "False"),
    Mutation("epoch: a successor's is no higher", start.Recovery.next_epoch, ".counter + 1", ".counter"),
    Mutation("epoch: work on another one is taken", _Intake.judge, "message.stamp.epoch != epoch", "False"),
    Mutation("after: it need not fit", _Intake.judge, "message.after != self.merged_seq(key)", "False"),
    Mutation("after: the map does not follow a close", _Intake.close, "add_record(self.map, record)", "self.map"),
    Mutation("seq: an older one replaces a newer one", _Intake.judge, " or message.seq < self.held_seq(key)", ""),
    Mutation("kept: freed before it is stable", _Learner.on_stable,
             "if not (kept.at > stable and", "if not (False and"),
    Mutation("kept: another epoch's word frees it", _Learner.on_stable, "stable.epoch != self.seen.epoch", "False"),
    Mutation("kept: nothing is taken back", _Learner.judge, "restore=alive", "restore=()"),
    Mutation("û is not subtracted", _Learner.judge, "mine if cut and not cut.void else 0", "0"),
    Mutation("û: what was sent is not forgotten", _Learner.adopt,
             "self.after, self.sent = mine, {}", "self.after = mine"),
    Mutation("drops: what is under way stays valid", _Learner.drop, "void=True", "void=False"),
    Mutation("repair: nothing is asked again", outflow.Outflow.turn,
             "duty.offer and self._unanswered(duty)", "False"),
    Mutation("recovery: the maps are not taken along", reception.Reception.judge_recovery,
             "Intake(map_)", "Intake()"),
    Mutation("end: what is unmerged stays in the values", finishing.boundary,
             "[] if learner.watching else", "[] if True else"),
    Mutation("end: it goes without the last versions", finishing.boundary, "_lacks(learner, duty) or", ""),
    Mutation("end: nobody is waited for", ending.Ending._is_awaited, "member.state not in AWAY and", "False and"),
    Mutation("end: a checkpoint of before is taken for the last", ending.Ending.saved, "self.syncer.dirty", "False"),
    Mutation("loans: a stamp that was not seen is taken", borrowing.Borrowing._has_seen,
             "and seen >= loan.stamp", ""),
    Mutation("loans: another epoch's is taken", borrowing.Borrowing._has_seen,
             "seen.epoch == loan.stamp.epoch and seen >= loan.stamp", "True"),
    Mutation("loans: lent at a stamp of before", lending.Lending.boundary,
             "stamp=duty.progress.seen)", "stamp=duty.progress.seen._replace(version=0))"),
    Mutation("loans: two at once", loans.Loans._next, "self.carried is None and self.waiting", "self.waiting"),
    Mutation("loans: what is over is not let go", loans.Loans._release,
             "if loan.message else []", "if loan.message and loan.state is not _S.SERVED else []"),
    Mutation("intake: a late one is forgotten", intake.Intakes.hold, "self.late += 1", "return []"),
)  # fmt: skip
