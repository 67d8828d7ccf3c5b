"""Contributions on their way out of a learner: called, cut, encoded, offered, held, refused.

Rule: at a boundary the oldest unmerged fragment goes first, as far as the uplink has room; what is called and cannot be
cut in time is declined, once. The encoded bytes stay until the fate of the contribution is known.
"""

from typing import TYPE_CHECKING

from zdiloco.core.codec_choice import CodecChoice
from zdiloco.core.duty import Duty, DutyEvent, DutyState
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.machine import (
    SYNCER,
    ContributionLost,
    Encoded,
    Forget,
    LearnerAction,
    Note,
    Send,
    Snapshot,
)
from zdiloco.core.messages import UPLINK_BUSY, Ack, Contribution, Decline, Refused
from zdiloco.core.progress import Refusal
from zdiloco.core.uplink import Uplink

if TYPE_CHECKING:
    from zdiloco.core.learner import LearnerMachine

SETTLED_REASONS = frozenset({Refusal.LAYOUT, Refusal.COUNTERS, Refusal.NON_FINITE, Refusal.NORM})
"""Refusals that the same bytes would meet again: they can go. After the others a repeated offer that is still on its
way may be taken all the same."""
EXPECTED_REASONS = frozenset({Refusal.AFTER, Refusal.BUDGET, Refusal.CLOSED})
"""Refusals that belong to a good run."""
MOST_UNSETTLED = 4
"""Contributions of one fragment whose bytes wait for their fate; beyond it the oldest go, long after their offer."""


class Outflow:
    """The outgoing side of one learner machine."""

    def __init__(self, machine: "LearnerMachine") -> None:
        self.machine = machine
        self.params = machine.params
        self.codec = CodecChoice() if self.params.codec == "auto" else None
        self.clear()

    def clear(self) -> None:
        """Nothing is under way (any more): the learner starts, or starts over."""
        self.uplink = Uplink(self.params.max_uplink, self.machine.sync.sync_period)
        self.kept_bytes: dict[tuple[int, int], int] = {}
        self.contributed = False

    def deadline(self) -> float:
        """When an unanswered offer is repeated; infinity: none is open."""
        wait = self.params.answer_timeout_s
        offered = (d.offered_at + wait for d in self.machine.duties if d.offer and self._unanswered(d))
        return min(offered, default=float("inf"))

    def answer(self, now: float) -> list[LearnerAction]:
        """Cut what is called, the oldest unmerged fragment first, as far as the uplink has room; decline the rest.

        What the uplink will have room for in time is put off without a word: once declined, a round need not wait.
        """
        called = [duty for duty in self.machine.duties if duty.state is DutyState.CALLED and duty.adoption is None]
        actions: list[LearnerAction] = []
        put_off = 0
        for duty in sorted(called, key=lambda d: (d.cut_step, d.index)):
            why = self._cannot(duty)
            if why is None and self.uplink.free(now):
                actions += self._cut(duty, now, f"called for version {duty.version}")
            elif why is None and self.uplink.soon(now, put_off):
                put_off += 1
            elif duty.declined != duty.version:
                why = why or f"{UPLINK_BUSY} with {len(self.uplink.under_way)}"
                duty.declined = duty.version
                self.machine.count("declined")
                decline = Decline(fragment=duty.index, version=duty.version, reason=why, eta_s=self.uplink.eta_s(now))
                actions.append(Send(key=SYNCER, message=decline))
        return actions

    def _cannot(self, duty: Duty) -> str | None:
        """Why nothing may be cut of a fragment, whatever room the uplink has."""
        if duty.must_follow:
            return "waits for the newest state of it"
        if duty.progress.steps < 1 or duty.progress.tokens < 1:
            return "no step since the last contribution" if duty.progress.steps < 1 else "no token since then"
        kept = sum(self.kept_bytes.values())
        if kept > self.params.kept_max_bytes:
            return f"{kept} bytes wait until something is stable (learner.kept_max_bytes)"
        return None

    def _cut(self, duty: Duty, now: float, why: str) -> list[LearnerAction]:
        cut = duty.progress.cut()
        duty.move(DutyEvent.CUT)
        duty.way, duty.offer, duty.cut_step = cut.seq, None, self.machine.step
        self.contributed = True
        self.machine.count("cut")
        self.uplink.start(duty.index, cut.seq, now)
        old = sorted(set(duty.progress.sent) - set(duty.progress.kept))[:-MOST_UNSETTLED]
        for seq in old:
            del duty.progress.sent[seq]
        codec = self.codec.codec if self.codec else ""
        return [*self.forget(duty, tuple(old)), Snapshot(fragment=duty.index, seq=cut.seq, why=why, codec=codec)]

    def encoded(self, event: Encoded, now: float) -> list[LearnerAction]:
        """A snapshot lies encoded: offer it, and see whether the next one is to be encoded otherwise."""
        return [*self._offer(event, now), *self._judge_codec(event)]

    def _judge_codec(self, event: Encoded) -> list[LearnerAction]:
        if self.codec is None:
            return []
        self.codec.encoded(event.codec, event.body.nbytes, self.machine.shares[event.fragment], event.encode_s)
        before, machine = self.codec.codec, self.machine
        why = self.codec.judge(event.link_bytes_s, machine.step, machine.sync.sync_period, self.uplink.step_s)
        what = f"encodes contributions in {self.codec.codec}, no longer in {before}"
        return [Note(what=what, why=why)] if why else []

    def _offer(self, event: Encoded, now: float) -> list[LearnerAction]:
        duty = self.machine.duties[event.fragment]
        cut = duty.progress.sent.get(event.seq)
        if duty.way != event.seq or cut is None or cut.void:
            self.uplink.end(event.fragment, event.seq)
            if duty.way == event.seq:
                duty.settle()
            return [Forget(fragment=event.fragment, seqs=(event.seq,))] if cut is None else []
        duty.offer = Contribution(
            fragment=event.fragment, seq=event.seq, after=duty.progress.after, stamp=duty.progress.seen,
            steps=cut.steps, tokens=cut.tokens, cut_step=duty.cut_step, version=duty.version, codec=event.codec,
            body=event.body,
        )  # fmt: skip
        self.kept_bytes[event.fragment, event.seq] = event.body.nbytes
        duty.offered_at = now
        return [Send(key=SYNCER, message=duty.offer)]

    def _unanswered(self, duty: Duty) -> bool:
        """Whether to ask again after a while; of a held one too, for word that it was sent back may be lost."""
        phases = (LearnerPhase.TRAINING, LearnerPhase.LEAVING)
        return duty.state in (DutyState.SENT, DutyState.HELD) and self.machine.phase in phases

    def turn(self, now: float) -> list[LearnerAction]:
        """Offer again what has met no answer."""
        actions: list[LearnerAction] = []
        for duty in self.machine.duties:
            if duty.offer and self._unanswered(duty) and now >= duty.offered_at + self.params.answer_timeout_s:
                duty.offered_at = now
                self.machine.count("offered again")
                actions.append(Send(key=SYNCER, message=duty.offer))
        return actions

    def ack(self, message: Ack, now: float) -> list[LearnerAction]:
        """The syncer says what it holds and what it has merged."""
        duty = self.machine.duty(message.fragment)
        if duty and duty.way and duty.way in (message.held, message.merged):
            duty.move(DutyEvent.HELD)
            duty.offered_at = now
            self.uplink.answered(duty.index, duty.way, now)
        if not message.remark:
            return []
        self.machine.count(f"remark: {message.remark}")
        what = f"contribution {message.merged} to fragment {message.fragment} is not merged as it is"
        return [Note(what=what, why=f"{message.remark}: {message.text}", level="warning")]

    def refused(self, message: Refused, now: float) -> list[LearnerAction]:
        """The syncer will not merge one of ours."""
        duty = self.machine.duty(message.fragment)
        if duty is None or not duty.way or duty.way != message.seq:
            return []
        self.machine.count(f"refused: {message.reason}")
        self.uplink.end(duty.index, duty.settle())
        what = f"contribution {message.seq} to fragment {message.fragment} is refused"
        level = "debug" if message.reason in EXPECTED_REASONS else "warning"
        actions: list[LearnerAction] = [Note(what=what, why=f"{message.reason}: {message.text}", level=level)]
        if message.reason in (Refusal.NON_FINITE, Refusal.NORM):
            self.machine.reseed = message.text
        judged = duty.adoption.mine if duty.adoption else 0
        if message.reason in SETTLED_REASONS and message.seq > judged:
            duty.progress.sent.pop(message.seq, None)
            actions += self.forget(duty, (message.seq,))
        if message.reason in (Refusal.EPOCH, Refusal.AFTER):
            duty.refused_on = (duty.progress.after, duty.progress.seen.epoch)
            actions += self.machine.inflow.pull(duty, now)
        return actions

    def lost(self, event: ContributionLost, now: float) -> list[LearnerAction]:
        """The transfer of one of ours was broken off."""
        duty = self.machine.duties[event.fragment]
        if duty.way != event.seq:
            return []
        self.uplink.end(duty.index, duty.settle())  # it may have arrived: its bytes stay until its fate is known
        self.machine.count("given up")
        return [Note(what=f"gives contribution {event.seq} to fragment {event.fragment} up", why=event.reason)]

    def forget(self, duty: Duty, seqs: tuple[int, ...]) -> list[LearnerAction]:
        """These encoded bytes are needed no more."""
        for seq in seqs:
            self.kept_bytes.pop((duty.index, seq), None)
            self.uplink.end(duty.index, seq)
        return [Forget(fragment=duty.index, seqs=seqs)] if seqs else []

    def push_rest(self, now: float) -> list[LearnerAction]:
        """Leaving: cut whatever is not under way yet, whether called or not; it is held for the next round.

        Not what would be refused again: one cut after the other would push out the bytes of one that was merged.
        """
        actions: list[LearnerAction] = []
        if now >= self.machine.leave_ends or self.machine.farewell:
            return actions
        for duty in self.machine.duties:
            idle = duty.state in (DutyState.IDLE, DutyState.CALLED) and duty.adoption is None
            if idle and not duty.must_follow and duty.progress.steps > 0 and duty.progress.tokens > 0:
                actions += self._cut(duty, now, "the learner leaves")
        return actions

    def is_pushed(self) -> bool:
        """Whether every fragment's work is under way, held, or nothing."""
        return all(duty.progress.tokens < 1 or duty.state is DutyState.HELD for duty in self.machine.duties)
