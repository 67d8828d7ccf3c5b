"""All rounds of all fragments: which to call, what they hold, when they close.

Rule: the desk decides about rounds and nothing else; members come from the fleet, bytes are handles. Whatever changes
who is in, held, declined or live is followed by `judge`, which closes what may be closed. What a single member does
is followed for that member alone (`place`, `stepped`), so that no event costs more because there are more of them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from zdiloco.core.adapting import adapt, came
from zdiloco.core.adaptive import Adaptive
from zdiloco.core.grace import Average, GraceInputs, grace_ends, p90_of_ordered
from zdiloco.core.machine import Note
from zdiloco.core.membership import CONTRIBUTING, Fleet, Member, MemberState
from zdiloco.core.messages import UPLINK_BUSY
from zdiloco.core.norms import Norms, Passed
from zdiloco.core.pace import Due, Standing, judge_due, max_open_rounds, needed_steps, why_not
from zdiloco.core.params import SyncParams
from zdiloco.core.progress import Held, Intake
from zdiloco.core.roll import Roll
from zdiloco.core.rounds import Attendance, Close, Round, RoundEvent, RoundState, Wait, decide, has_quorum
from zdiloco.core.turnout import Turnout
from zdiloco.units import NO_STAMP, FragmentId, MemberKey, Merged, Stamp

CALLS_REMEMBERED = 16
"""Calls per fragment whose time is kept, to measure how long answers take."""


@dataclass(slots=True)
class FragmentDesk:
    """One fragment at the syncer. `stamp`: what is published; the intake may be one version ahead while merging."""

    index: FragmentId
    numel: int
    share: float
    intake: Intake
    norms: Norms = field(default_factory=Norms)
    turnout: Turnout = field(default_factory=lambda: Turnout(0.125))
    stamp: Stamp = NO_STAMP
    stable: Stamp = NO_STAMP
    round: Round | None = None
    last_quorum_at: float | None = None
    roll: Roll = field(default_factory=Roll)
    standing: Standing | None = None
    first_turn: bool = True
    check_at: float = math.inf
    due: Due | None = None
    calls: dict[int, float] = field(default_factory=dict)
    why: str = "not yet due"
    last_merged: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """A round that closes now, with all that is merged in it: each with what of it enters the merge."""

    desk: FragmentDesk
    taken: list[tuple[Held, Passed]]
    record: tuple[Merged, ...]
    why: str


class Desk:
    """The rounds of every fragment."""

    def __init__(self, params: SyncParams, fleet: Fleet) -> None:
        self.params = params
        self.adaptive = Adaptive(params) if params.adaptive else None
        self.fleet = fleet
        self.fragments: list[FragmentDesk] = []
        self.draining = self.started = False
        self.stirred = False
        """Somebody has moved since every round was last judged."""
        self.quorum_s = Average(params.average)
        self.sync_s = Average(params.average)
        self.round_s = Average(params.average)
        self.ends: dict[FragmentId, float] = {}
        self.most_open = 1 << 30
        self.parked = 0
        self.no_room: dict[FragmentId, set[MemberKey]] = {}
        fleet.on_moved, fleet.on_stepped = self.moved, self.stepped

    def __iter__(self) -> Iterator[FragmentDesk]:
        return iter(self.fragments)

    def quorum(self) -> int:
        """K as it holds now: lower where it may degrade, and at the end of a run."""
        live = len(self.fleet.counted())
        if self.draining or self.params.on_lost_quorum == "degrade":
            return max(1, min(self.params.min_quorum, live))
        return self.params.min_quorum

    def max_open(self) -> int:
        """How many rounds may be open at once, parked ones apart."""
        by_time = max_open_rounds(len(self.fragments), self.round_s.value, self.fleet.paces.least, self.params)
        return max(1, min(by_time, self.most_open))

    def open_rounds(self) -> list[Round]:
        """Rounds that still gather, in the order of their fragments."""
        return [desk.round for desk in self.fragments if desk.round and desk.round.gathering]

    def taking_slots(self) -> int:
        """Rounds that count against `max_open`."""
        return sum(1 for desk in self.fragments if desk.round and desk.round.state is not RoundState.PARKED)

    def begin_turn(self, now: float) -> bool:
        """Start the staggered first turn once K learners are live. Returns whether it began at this moment."""
        members = self.fleet.counted()
        if self.started or not members or len(members) < self.quorum():
            return False
        self.started = True
        for member in members:
            if member.first_step is not None:
                member.first_step = member.step
        for desk in self.fragments:
            desk.standing = desk.due = None
        self.look_again(now)
        return True

    def look_again(self, now: float) -> None:
        """Judge at once which fragments are due: the fleet has changed."""
        for desk in self.fragments:
            desk.check_at = now

    def call(self, now: float) -> list[Round]:
        """Open the rounds that are due, the longest overdue first, as far as slots are free."""
        if self.draining or not self.started:
            return []
        for desk in self.fragments:
            if desk.round is None and desk.check_at <= now:
                self._judge_due(desk, now)
        ready = sorted((d for d in self.fragments if d.due), key=lambda d: (d.due.since if d.due else 0, d.index))
        if not ready:
            return []
        # Parked rounds free their slot, but not their claim on memory: rounds of more fragments than it holds quorums
        # of would take the room from each other for ever.
        under_way = sum(desk.round is not None for desk in self.fragments)
        free, opened = min(self.max_open() - self.taking_slots(), self.most_open - under_way), []
        for desk in ready:
            if free > 0 or len(self.counting(desk)) >= self.quorum():  # what is held already needs no room
                free -= 1
                opened.append(self._open(desk, now))
            else:
                desk.why = f"due, waits for one of {self.max_open()} slots"
        return opened

    def _judge_due(self, desk: FragmentDesk, now: float) -> None:
        members, quorum = self.fleet.counted(), self.quorum()
        needed = needed_steps(desk.index, len(self.fragments), desk.first_turn, self.params)
        if desk.standing is None:
            desk.standing = Standing(desk.index, needed, members, self.params)
        at = desk.standing.due_at(quorum)
        if at > now:
            desk.due, desk.check_at, desk.why = None, at, why_not(len(members), quorum, needed)
            return
        desk.check_at = math.inf
        if desk.due is None:
            found = judge_due(desk.index, needed, members, quorum, now, self.params)
            assert isinstance(found, Due)
            desk.due, desk.why = found, found.why

    def _open(self, desk: FragmentDesk, now: float) -> Round:
        why = desk.due.why if desk.due else ""
        version = desk.stamp.version + 1
        desk.round = Round(fragment=desk.index, version=version, called_at=now, why=why)
        desk.due, desk.standing, desk.first_turn, desk.check_at = None, None, False, math.inf
        no_room = self.no_room.get(desk.index, set())
        desk.roll.open(self.fleet.waited_for() - desk.roll.held - no_room)
        desk.calls[version] = now
        for old in sorted(desk.calls)[:-CALLS_REMEMBERED]:
            del desk.calls[old]
        for member in (member for state in CONTRIBUTING for member in self.fleet.in_state[state].values()):
            member.call(desk.index, now, 2 * self.params.report_every_s)
        return desk.round

    def arrived(self, held: Held, now: float) -> Held | None:
        """Hold a contribution; the one it replaces is returned. Averages follow."""
        desk = self.fragments[held.id.fragment]
        before = desk.intake.hold(held)
        key = held.id.key
        member = self.fleet.find(key)
        called_at = desk.calls.get(held.message.version)
        if member and called_at is not None:
            self.fleet.answered(member, now - called_at)
        if desk.round and desk.round.gathering:
            desk.round.declined.pop(key, None)
            if held.message.version >= desk.round.version:
                desk.round.fresh.add(key)
        self.place(desk, key)
        if self.adaptive:
            came(self, self.adaptive, desk, now)
        return before

    def declined(self, desk: FragmentDesk, rnd: Round, key: MemberKey, reason: str) -> None:
        """A member cannot answer the call of this round now."""
        rnd.declined[key] = reason
        self.place(desk, key)

    def has_room(self, key: MemberKey, fragment: FragmentId, there: bool) -> None:
        """A contribution waits for room, so that nobody waits for it; or not any more."""
        waiting = self.no_room.setdefault(fragment, set())
        if there:
            waiting.discard(key)
        else:
            waiting.add(key)
        if not waiting:
            del self.no_room[fragment]
        self.place(self.fragments[fragment], key)

    def place(self, desk: FragmentDesk, key: MemberKey) -> None:
        """Sort one process in anew for one fragment: it came, answered, declined, moved, or has room now."""
        rnd, waits = desk.round, self.no_room.get(desk.index, ())
        held = key in desk.intake.held and key not in self.fleet.quarantined()
        fresh = absent = False
        if rnd is not None and rnd.gathering:
            fresh = held and key in rnd.fresh
            absent = not held and key in self.fleet.waited_for() and key not in rnd.declined and key not in waits
        desk.roll.place(key, held=held, fresh=fresh, absent=absent)

    def moved(self, member: Member) -> None:
        """A member's state has changed."""
        self.stirred |= member.state is not MemberState.JOINING  # who has made no step yet changes nothing
        for desk in self.fragments:
            self.place(desk, member.key)
            self._follow(desk, member)

    def stepped(self, member: Member) -> None:
        """A member has reported steps, and so its pace."""
        for desk in self.fragments:
            if desk.round is None:
                self._follow(desk, member)
            else:
                desk.roll.paced(member.key)

    def marked(self, member: Member, fragment: FragmentId, cut_step: int) -> None:
        """A member has cut a contribution: its next period on that fragment counts from there."""
        member.marks[fragment] = max(member.marks.get(fragment, 0), cut_step)
        self._follow(self.fragments[fragment], member)

    def _follow(self, desk: FragmentDesk, member: Member) -> None:
        if desk.standing is None:
            return
        desk.standing.follow(member, self.fleet.counts(member))
        if desk.due is None:
            desk.check_at = desk.standing.due_at(self.quorum())

    def counting(self, desk: FragmentDesk) -> set[MemberKey]:
        """Whose held contribution counts for the quorum: everybody's but those in quarantine. Not to be changed."""
        return desk.roll.held

    def attendance(self, desk: FragmentDesk) -> Attendance:
        """Who is where for the round of this fragment, as long as nothing changes."""
        rnd, roll = desk.round, desk.roll
        assert rnd is not None
        return Attendance(
            absent=roll.absent,
            live=len(self.fleet.counted()),
            held=roll.held,
            fresh=roll.fresh,
            quorum=self.quorum(),
            patience_ends=rnd.called_at + self._patience_s(),
        )

    def _patience_s(self) -> float:
        """How long held contributions wait for an answer to a call: one period, or as long as answers usually take."""
        paces, answers = self.fleet.paces.values, self.fleet.answers.values
        if not paces or not answers:
            return self.params.park_after_s
        usual = max(self.params.sync_period * paces[0], paces[-1], p90_of_ordered(answers))
        return min(self.params.park_after_s, usual)

    def judge(self, now: float) -> list[Closing]:
        """Close every round that may close at `now`; the others get their reason and their next deadline."""
        return [closing for desk in self.fragments if desk.round for closing in self.judge_one(desk, now)]

    def judge_one(self, desk: FragmentDesk, now: float) -> list[Closing]:
        """The same for one fragment."""
        rnd = desk.round
        self.ends.pop(desk.index, None)
        if rnd is None or not rnd.gathering:
            return []
        seen = self.attendance(desk)
        self._follow_quorum(desk, rnd, has_quorum(seen), now)
        ends, why = (None, "") if rnd.quorum_at is None else self._window(desk, rnd, rnd.quorum_at)
        found = decide(seen, ends, why, now)
        if self.adaptive and not self.draining:
            period_s = self.params.sync_period * (self.fleet.paces.least or 0.0)
            found = self.adaptive.waits_on(found, seen, rnd.called_at + period_s, now)
        rnd.why = desk.why = found.why
        if isinstance(found, Wait):
            self._set_deadline(desk, rnd, found, now)
            return []
        return [self._close(desk, rnd, found, now)]

    def _follow_quorum(self, desk: FragmentDesk, rnd: Round, reached: bool, now: float) -> None:
        if reached and rnd.state is not RoundState.GRACE:
            if rnd.state is RoundState.OPEN:
                self.quorum_s.add(now - rnd.called_at)  # parked rounds would spoil the average
            rnd.move(RoundEvent.QUORUM)
            rnd.quorum_at = now
            desk.roll.begin_grace(self.fleet.pace_of)
        elif not reached and rnd.state is RoundState.GRACE:
            rnd.move(RoundEvent.QUORUM_LOST)
            rnd.quorum_at = None
            desk.roll.end_grace()

    def _window(self, desk: FragmentDesk, rnd: Round, quorum_at: float) -> tuple[float, str]:
        slowest_s, answers = desk.roll.slowest_s(), self.fleet.answers.values
        inputs = GraceInputs(
            called_at=rnd.called_at,
            quorum_at=quorum_at,
            step_s=self.fleet.paces.least,
            quorum_s=self.quorum_s.value,
            sync_s=self.sync_s.value,
            waiting_steps_s=() if slowest_s is None else (slowest_s,),
            answers_s=(p90_of_ordered(answers),) if answers else (),
            least_share=self.adaptive.grace.share if self.adaptive else 0.0,
        )
        return grace_ends(inputs, self.params)

    def _set_deadline(self, desk: FragmentDesk, rnd: Round, wait: Wait, now: float) -> None:
        park_at = rnd.called_at + self.params.park_after_s
        if rnd.state is RoundState.OPEN and now >= park_at:
            rnd.move(RoundEvent.TOO_LONG)
            self.parked += 1
        soonest = [wait.until] if wait.until is not None else []
        if rnd.state is RoundState.OPEN:
            soonest.append(park_at)
        if soonest:
            self.ends[desk.index] = min(soonest)

    def _close(self, desk: FragmentDesk, rnd: Round, close: Close, now: float) -> Closing:
        rnd.move(RoundEvent.CLOSE)
        rnd.closed_at = now
        desk.last_quorum_at = now if rnd.quorum_at is None else rnd.quorum_at
        if self.adaptive:
            busy = sum(reason.startswith(UPLINK_BUSY) for reason in rnd.declined.values())
            self.adaptive.closed(len(rnd.fresh), busy)
        desk.last_merged = len(desk.intake.held)
        taken, record = desk.intake.close()
        desk.roll.close()
        living = {member.key.name for member in self.fleet.counted()}
        passed = desk.norms.judge(taken, rnd.version, self.params.clip, living)
        if desk.share:  # statistics are no step that could be shorter
            passed, few = desk.turnout.judge(passed, self.params.min_quorum, ending=self.draining)
            rnd.why = desk.why = f"{close.why}; {few}" if few else close.why
        return Closing(desk=desk, taken=list(zip(taken, passed, strict=True)), record=record, why=rnd.why)

    def published(self, desk: FragmentDesk, stamp: Stamp, now: float) -> Round:
        """The outer step is made and goes out: the round is over. Returns it."""
        rnd = desk.round
        assert rnd is not None
        assert rnd.closed_at is not None
        was_parked = rnd.closed_at - rnd.called_at >= self.params.park_after_s
        rnd.move(RoundEvent.MERGED)
        self.sync_s.add(now - rnd.closed_at)
        if not was_parked:
            self.round_s.add(now - rnd.called_at)
        desk.round, desk.stamp, desk.check_at = None, stamp, now
        return rnd

    def adapted(self, now: float) -> list[Note]:
        """After a round: H and K may be others from here on, and why."""
        return adapt(self, self.adaptive, now) if self.adaptive else []

    def void(self, desk: FragmentDesk, now: float) -> None:
        """The merge has come to nothing: the round is over, and the fragment is due by its own rule."""
        assert desk.round is not None
        desk.round.move(RoundEvent.FAILED)
        desk.intake.reopen()
        desk.round, desk.check_at = None, now

    def cancel_empty(self) -> list[Round]:
        """End the rounds that hold nothing (at the end of a run). Returns them."""
        cancelled = []
        for desk in self.fragments:
            if desk.round and desk.round.gathering and not desk.intake.held:
                cancelled.append(desk.round)
                desk.round = None
                self.ends.pop(desk.index, None)
        return cancelled

    def deadline(self) -> float | None:
        """The next moment at which a round may close or park, or a fragment may be due."""
        due = list(self.ends.values())
        if self.started and not self.draining:
            due += [desk.check_at for desk in self.fragments if desk.round is None and desk.check_at < math.inf]
        return min(due, default=None)
