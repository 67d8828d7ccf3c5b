"""Inner state in a world: the ids of the steps that an inner optimizer has seen, lent and borrowed as a set.

Rule: what must hold is looked at here, from the bodies alone: a lender's stamp is what it has adopted, a borrower has
adopted that of the same epoch or a later one, and it takes exactly what was copied at that stamp.
"""

from functools import partial
from typing import TYPE_CHECKING

from zdiloco.agenda import Broken
from zdiloco.core import machine as m
from zdiloco.core.messages import Loan
from zdiloco.sim.actors import Actor
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.work import Parcel

if TYPE_CHECKING:
    from zdiloco.sim.learner_side import LearnerSide

ENCODE_S = 0.002
OF_LOANS = (m.CopyInner, m.EndLending, m.ReceiveLoan, m.TakeInner, m.DropLoan)
"""Actions of a learner that are done here."""


def do_loan(
    world: "LearnerSide", actor: Actor,
    action: m.CopyInner | m.EndLending | m.ReceiveLoan | m.TakeInner | m.DropLoan,
) -> None:  # fmt: skip
    """Carry one of them out."""
    if isinstance(action, m.CopyInner):
        _copy(world, actor, action)
    elif isinstance(action, m.EndLending):
        world.freight.drop(actor, actor.lent)
    elif isinstance(action, m.ReceiveLoan):
        world.freight.receive(actor, action.loan, broadcast=False)
    elif isinstance(action, m.TakeInner):
        _take(world, actor, action.loan)
    else:
        world.freight.discard(actor, action.loan)
        actor.body.do(action)


def _copy(world: "LearnerSide", actor: Actor, action: m.CopyInner) -> None:
    lend, adopted = action.lend, actor.body.adopted.get(action.lend.fragment)
    if adopted is None or adopted.stamp != action.stamp:
        raise Broken("loans", f"{actor.key.name} lends fragment {lend.fragment} at {action.stamp}, which it has not")
    ids = actor.body.inner[lend.fragment]
    world.lent.setdefault((lend.number, lend.fragment, action.stamp), set()).add(ids)
    world.later(actor, ENCODE_S, partial(_offer, world, actor, action, ids))


def _offer(world: "LearnerSide", actor: Actor, action: m.CopyInner, ids: int) -> None:
    lend = action.lend
    world.freight.drop(actor, actor.lent)
    actor.lent = f"l/{lend.number}"
    body = world.freight.put(actor, actor.lent, Parcel(ids, NBYTES))
    loan = Loan(
        fragment=lend.fragment, number=lend.number, kind=lend.kind, stamp=action.stamp, codec="fp32", body=body
    )
    world.tell(actor, m.LoanReady(loan=loan))


def here(world: "LearnerSide", actor: Actor, loan: Loan, parcel: Parcel) -> None:
    """All bytes of a loan are here."""
    actor.body.loans[loan.number] = parcel.value
    world.tell(actor, m.LoanHere(number=loan.number))


def _take(world: "LearnerSide", actor: Actor, loan: Loan) -> None:
    ids, adopted = actor.body.loans.pop(loan.number), actor.body.adopted.get(loan.fragment)
    if adopted is None or adopted.stamp.epoch != loan.stamp.epoch or adopted.stamp < loan.stamp:
        seen = adopted.stamp if adopted else None
        raise Broken("loans", f"{actor.key.name} takes inner state of {loan.stamp}, and has seen {seen}")
    if world.exact and ids not in world.lent.get((loan.number, loan.fragment, loan.stamp), ()):
        raise Broken("loans", f"{actor.key.name} takes what nobody has lent at {loan.stamp}")
    actor.body.inner[loan.fragment] = ids
    world.seen["borrowed"] += 1
