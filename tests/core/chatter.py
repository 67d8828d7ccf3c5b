"""Peers that say anything at any time, and bodies that answer sooner or later: nothing of it may surprise a machine.

Rule: messages are valid one by one and make no sense together; bodies keep their contract (every heavy action is
answered once, in order, for better or worse). A machine that stops is followed by a new one.
"""

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tests.core.samples import BODY, contribution
from zdiloco.core import machine as m
from zdiloco.core import messages as w
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.core.progress import Refusal
from zdiloco.core.start import KnownState
from zdiloco.core.syncer import SyncerMachine
from zdiloco.units import Epoch, MemberKey, Merged, Stamp

P = 2
SHARES = (0.5, 0.5)
OLD, NEW = (tuple(MemberKey(name, n) for name in ("ann", "bob", "eve")) for n in (1, 2))


class Chatter(ABC):
    """What both sides share: chance, time, and the answers that a body still owes."""

    machine: Any

    def __init__(self, seed: int) -> None:
        self.rng, self.now, self.owed = random.Random(seed), 0.0, list[Any]()
        self.states: set[Any] = set()

    def some(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def turn(self) -> None:
        """One event: an answer that is owed, or whatever comes to somebody's mind."""
        self.now += self.rng.choice([0.0, 0.01, 0.2, 0.2, 1.0, 7.0 if self.rng.random() < 0.1 else 0.1])
        event = self.owed.pop(0) if self.owed and self.rng.random() < 0.6 else self.event()
        for action in self.machine.handle(event, self.now):
            answer = self.answer(action)
            self.owed += [answer] if answer else []
        self.states.add(self.machine.phase)
        if self.machine.deadline() is None:
            self.owed.clear()
            self.begin()

    def epoch(self) -> Epoch:
        mine = self.machine.epoch
        other = Epoch(max(0, mine.counter + self.some(-1, 0, 1)), self.some(1, 9))
        return other if self.rng.random() < 0.006 else mine

    def stamp(self) -> Stamp:
        return Stamp(self.epoch(), self.rng.randint(-1, 4))

    @abstractmethod
    def event(self) -> Any:
        """What comes to somebody's mind."""

    @abstractmethod
    def answer(self, action: Any) -> Any:
        """What the body says to an action; None: nothing."""

    @abstractmethod
    def begin(self) -> None:
        """Make a new machine."""


class SyncerChatter(Chatter):
    """A syncer among learners that say anything."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.begin()

    def begin(self) -> None:
        params = SyncParams(
            min_quorum=self.some(1, 2), sync_period=2, on_lost_quorum=self.some("wait", "degrade"), park_after_s=2.0,
            budget_bytes=2**16, checkpoint_every_s=1.0, drain_s=3.0, recover_wait_s=1.0,
        )  # fmt: skip
        self.keys = self.some(OLD, OLD, NEW, OLD + NEW)
        self.machine = SyncerMachine(
            params, run_id="run", ident=self.rng.randint(1, 9), now=self.now, target_tokens=self.some(0, 10, 60),
            known=self.some(None, self.known()),
        )  # fmt: skip

    def known(self) -> KnownState:
        stamps = tuple(Stamp(Epoch(1, 5), self.rng.randint(0, 2)) for _ in range(P))
        maps = tuple(self.records() for _ in range(P))
        return KnownState(
            run_id="run", epoch=Epoch(1, 5), layout_digest="layout", numels=(1000,) * P, shares=SHARES, stamps=stamps,
            maps=maps,
        )  # fmt: skip

    def records(self) -> tuple[Merged, ...]:
        return tuple(Merged(*key, self.rng.randint(1, 3), 2, 20) for key in OLD if self.rng.random() < 0.2)

    def event(self) -> Any:
        if self.rng.random() < 0.002:
            return m.LeaveRequested(reason="asked to")
        if self.rng.random() < 0.2:
            return m.TimerDue()
        return m.Received(key=(key := self.some(*self.keys)), message=self.message(key))

    def message(self, key: MemberKey) -> w.Message:
        fragment, count = self.rng.randint(0, P), self.rng.randint(0, 6)
        says: list[tuple[int, Callable[[], w.Message]]] = [
            (4, lambda: self.hello(key)),
            (6, lambda: w.Report(step=int(5 * self.now), trained_tokens=9, unmerged_tokens=1.0, dropped_tokens=0.0)),
            (3, lambda: w.Heartbeat(epoch=self.machine.epoch if count else self.epoch())),
            (12, lambda: self.contribution(key)),
            (3, lambda: w.Decline(fragment=fragment, version=count, reason="busy", eta_s=1.0)),
            (1, lambda: w.Pull(fragment=fragment)),
            (2, lambda: w.LayoutOffer(digest="layout", body=BODY)),
            (4, lambda: w.InitialOffer(fragment=fragment % P, body=BODY)),
            (2, lambda: w.Handback(fragment=fragment % P, stamp=self.stamp(), codec="fp32", value_bytes=9, body=BODY)),
            (1, lambda: w.Goodbye(reason="bye", trained_tokens=9, left_tokens=1.0, dropped_tokens=0.0)),
            (1, lambda: w.Receipt() if count % 2 else w.StatusQuery()),
            (1, lambda: w.Call(epoch=self.epoch(), fragment=0, version=1)),
            (3, lambda: w.Borrow(fragment=fragment, kind="a", stamp=self.stamp())),
            (1, lambda: self.loan(fragment)),
            (1, lambda: w.LoanOver(fragment=fragment, number=self.machine.loans.number, reason=self.some("", "taken"))),
        ]
        return self.rng.choices([say for _, say in says], [often for often, _ in says])[0]()

    def hello(self, key: MemberKey) -> w.Hello:
        return w.Hello(
            name=key.name, incarnation=key.incarnation, run_id=self.some("", "run", "run", "other"),
            layout_digest=self.some("layout", "layout", "layout", "another"), epoch=self.epoch(),
            stamps=self.some((), tuple(Stamp(Epoch(1, 5), self.rng.randint(0, 6)) for _ in range(P))),
            watching=self.rng.random() < 0.1,
        )  # fmt: skip

    def loan(self, fragment: int) -> w.Loan:
        number = max(0, self.machine.loans.number - self.some(0, 0, 1))
        body = w.Body(transfer=str(self.now), nbytes=self.some(9, 9, 9, 2**50), chunk_bytes=9, digest=0)
        return w.Loan(fragment=fragment, number=number, kind="a", stamp=self.stamp(), codec="fp32", body=body)

    def contribution(self, key: MemberKey) -> w.Contribution:
        fragment, after = self.rng.randint(0, P), self.rng.randint(0, 2)
        desks = self.machine.desk.fragments
        if fragment < len(desks) and self.rng.random() < 0.8:
            after = desks[fragment].intake.merged_seq(key)
        nbytes = self.some(1000, 9000, 12_000, 13_000)
        body = w.Body(transfer=str(self.now), nbytes=nbytes, chunk_bytes=1 << 20, digest=0)
        return contribution(
            after + self.rng.randint(0, 2) or 1, after, self.epoch(), fragment=fragment, version=self.rng.randint(0, 5),
            steps=self.some(1, 2, 0), tokens=10, cut_step=int(5 * self.now) + 2, body=body,
        )  # fmt: skip

    def answer(self, action: Any) -> Any:
        bad = self.rng.random() < 0.1
        key, message = getattr(action, "key", None), getattr(action, "message", None)
        if isinstance(action, m.Send):
            return self.reply(key, message)
        if isinstance(action, m.Fetch):
            return m.FetchLost(key=key, message=message, reason="gone") if bad else m.Fetched(key=key, message=message)
        if isinstance(action, m.TakeLayout | m.TakeInitial | m.TakeHandback) and bad:
            return m.Unusable(key=key, message=message, reason="nonsense")
        if isinstance(action, m.TakeLayout):
            return m.LayoutTaken(key=key, digest="layout", numels=(1000,) * P, shares=SHARES)
        if isinstance(action, m.TakeInitial):
            return m.InitialTaken(key=key, fragment=message.fragment)
        if isinstance(action, m.TakeHandback):
            return m.HandbackTaken(key=key, fragment=message.fragment, stamp=message.stamp, map_=self.records())
        if isinstance(action, m.Screen):
            norm = self.some(1.0, 1.0, 0.0, 50.0, 1e9)
            return m.Screened(id=action.id, reason="non_finite" if bad else "", norm=norm, values=self.some(0.0, 1.0))
        if isinstance(action, m.Merge):
            update = w.Update(
                fragment=action.fragment, stamp=action.stamp, full=False, codec="bf16", value_bytes=9, body=BODY
            )
            failed = m.MergeFailed(fragment=action.fragment, reason="infinite")
            return failed if self.rng.random() < 0.05 else m.MergeDone(update=update)
        if isinstance(action, m.Save):
            stamps = tuple(desk.stamp for desk in self.machine.desk)
            return m.SaveFailed(reason="disk full") if self.rng.random() < 0.03 else m.Saved(stamps=stamps)
        return None

    def reply(self, key: MemberKey, message: w.Message) -> None:
        """What a learner that is asked for its values or its adopted state does."""
        if isinstance(message, w.Donate):
            values = [w.InitialOffer(fragment=fragment, body=BODY) for fragment in range(P)]
            offers = [w.LayoutOffer(digest="layout", body=BODY), *values]
            self.owed += [m.Received(key=key, message=offer) for offer in offers]
        if isinstance(message, w.Lend):
            over = w.LoanOver(fragment=message.fragment, number=message.number, reason="it cannot")
            says = self.some(self.loan(message.fragment), self.loan(message.fragment), over)
            self.owed.append(m.Received(key=key, message=says))
        if isinstance(message, w.HandbackRequest):
            recovery = self.machine.reception.recovery
            stamp = recovery.pending.get((key, message.fragment), self.stamp())
            offer = w.Handback(fragment=message.fragment, stamp=stamp, codec="fp32", value_bytes=9, body=BODY)
            self.owed.append(m.Received(key=key, message=offer))


class LearnerChatter(Chatter):
    """A learner under a syncer that says anything."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.versions = [0] * P
        self.begin()

    def begin(self) -> None:
        params = LearnerParams(
            adopt=self.some("carry", "overwrite", "blend"), kept_max_bytes=self.some(3000, 2**30),
            max_unmerged_steps=self.some(0, 0, 40), max_uplink=self.some(1, 8), warm_start=self.some("own", "peer"),
        )  # fmt: skip
        key = MemberKey("ann", self.rng.randint(1, 2**40))
        self.machine = LearnerMachine(key, SyncParams(), params, shares=SHARES, layout_digest="layout")
        self.owed.append(m.Started())

    def event(self) -> Any:
        dice = self.rng.random()
        if dice < 0.003:
            return m.LeaveRequested(reason="asked to")
        if dice < 0.35:
            return m.StepDone(tokens=10, seconds=0.1)
        if dice < 0.55:
            return self.some(m.TimerDue(), m.Boundary())
        if dice < 0.57:
            fragment = self.rng.randrange(P)
            way = self.machine.duties[fragment].way
            return m.ContributionLost(fragment=fragment, seq=way or 1, reason="broken off")
        return m.Received(key=m.SYNCER, message=self.message())

    def message(self) -> w.Message:
        fragment = self.rng.randint(0, P)
        says: list[tuple[int, Callable[[], w.Message]]] = [
            (2, w.Donate),
            (4, self.welcome),
            (1, self.unwelcome),
            (9, self.beat),
            (4, lambda: w.Call(epoch=self.epoch(), fragment=fragment, version=self.rng.randint(1, 9))),
            (9, lambda: self.update(fragment)),
            (8, lambda: self.ack(fragment)),
            (3, lambda: self.refused(fragment)),
            (1, lambda: w.HandbackRequest(fragment=fragment)),
            (1, lambda: self.farewell()),
            (1, lambda: w.Lend(fragment=fragment, number=self.rng.randint(1, 5), kind="a")),
            (3, lambda: self.loan(fragment)),
            (1, lambda: w.LoanOver(fragment=fragment, number=self.rng.randint(0, 2), reason="nobody can")),
            (1, w.StatusQuery),
        ]
        return self.rng.choices([say for _, say in says], [often for often, _ in says])[0]()

    def seq(self, fragment: int) -> int:
        return self.machine.duties[fragment].way if fragment < P and self.rng.random() < 0.7 else self.rng.randint(0, 5)

    def epoch(self) -> Epoch:
        mine = self.machine.epoch
        return Epoch(mine.counter + 1, self.some(1, 9)) if self.rng.random() < 0.02 or not mine.counter else mine

    def welcome(self) -> w.Welcome:
        self.versions = [v + self.some(0, 1) for v in self.versions]
        versions = tuple(self.versions) if self.rng.random() < 0.98 else (0,) * 5
        return w.Welcome(
            epoch=self.epoch(), run_id="run", order=1, versions=versions, progress=0.1
        )

    def unwelcome(self) -> w.Unwelcome:
        reason = self.some("starting", "unknown", "unknown", "replaced")
        return w.Unwelcome(reason=reason, text="so it is", fatal=reason == "replaced" and self.rng.random() < 0.2)

    def beat(self) -> w.Beat:
        rounds = tuple((f, v + 1) for f, v in enumerate(self.versions))
        stable = tuple(v - self.some(0, 1) for v in self.versions)
        return w.Beat(
            epoch=self.epoch(), open_rounds=rounds, versions=tuple(self.versions), stable=stable, progress=0.2,
        )  # fmt: skip

    def update(self, fragment: int) -> w.Update:
        version = self.rng.randint(0, 9)
        if fragment < P:
            version = self.machine.duties[fragment].tip.version + self.some(0, 1, 1, 1, 2)
            self.versions[fragment] = max(self.versions[fragment], version)
        body = w.Body(transfer=str(self.now), nbytes=9, chunk_bytes=9, digest=0)
        return w.Update(
            fragment=fragment, stamp=Stamp(self.epoch(), max(version, 0)), full=self.rng.random() < 0.4, codec="bf16",
            value_bytes=9, body=body,
        )  # fmt: skip

    def loan(self, fragment: int) -> w.Loan:
        wanted = self.machine.borrowing.left
        return w.Loan(
            fragment=wanted[0] if wanted else fragment, number=self.rng.randint(1, 5), kind="a", stamp=self.stamp(),
            codec="fp32", body=BODY,
        )  # fmt: skip

    def ack(self, fragment: int) -> w.Ack:
        held, merged = self.seq(fragment), self.seq(fragment)
        return w.Ack(fragment=fragment, held=held, merged=merged, remark=self.some("", "", "clipped"), text="so it is")

    def refused(self, fragment: int) -> w.Refused:
        reason = self.some(*Refusal, "?")
        return w.Refused(fragment=fragment, seq=self.seq(fragment), reason=reason, text="so it is")

    def farewell(self) -> w.Message:
        if self.rng.random() < 0.9:
            return w.Pull(fragment=0)
        return w.Farewell(epoch=self.epoch(), finished=self.some(True, False), reason="over")

    def answer(self, action: Any) -> Any:
        fragment = getattr(action, "fragment", 0)
        if isinstance(action, m.Snapshot):
            return m.Encoded(fragment=fragment, seq=action.seq, codec="bf16", body=BODY)
        if isinstance(action, m.Prepare):
            return m.Prepared(fragment=fragment, serial=action.serial)
        if isinstance(action, m.Reincarnate):
            return m.Reborn(incarnation=self.rng.randint(1, 2**40))
        if isinstance(action, m.LookInner):
            return m.InnerSeen(kind=self.some("a", "a", ""), fragments=(0, 1))
        if isinstance(action, m.CopyInner):
            loan = self.loan(action.lend.fragment)
            failed = m.LendFailed(number=action.lend.number, reason="it cannot")
            return self.some(m.LoanReady(loan=dataclasses.replace(loan, number=action.lend.number)), failed)
        if isinstance(action, m.ReceiveLoan):
            lost = m.LoanLost(number=action.loan.number, reason="NaN in exp_avg")
            return self.some(m.LoanHere(number=action.loan.number), m.LoanHere(number=action.loan.number), lost)
        if isinstance(action, m.Receive):
            if self.rng.random() < 0.15:
                return m.UpdateLost(update=action.update)
            return m.UpdateReady(update=action.update, records=self.records(action.update))
        return None

    def records(self, update: w.Update) -> tuple[Merged, ...]:
        progress = self.machine.duties[update.fragment].progress
        mine = self.some(progress.after, *progress.sent, max(0, progress.after - 1))
        tokens = 0 if not mine else 10 * mine if update.full else 10
        others = (Merged("bob", 7, 1, 1, 10),)
        newly = mine > (0 if update.full else progress.after)
        return (*others, Merged(*self.machine.key, mine, 1, tokens)) if newly else others
