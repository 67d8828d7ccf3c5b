"""The two sides of the exactly-once protocol of one fragment, each as a value that one event changes.

Rule: what decides is production code: LearnerProgress with Duty's reading of updates, Intake, Recovery and what
Reception makes of it. Around it stands only what must: payloads are sets of ids, one bit per inner step. What a body
or a machine does in several steps is done in one here; `explore.py` takes it apart.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from tests.core.samples import BODY
from zdiloco.core.duty import Duty
from zdiloco.core.messages import Contribution, Handback, Hello, Update
from zdiloco.core.progress import Fate, Held, Intake, LearnerProgress, Refusal
from zdiloco.core.reception import Reception
from zdiloco.core.start import Recovery
from zdiloco.core.syncer import SyncerMachine
from zdiloco.sim.work import ids_of, joined, without
from zdiloco.units import NO_EPOCH, ContributionId, Epoch, MemberKey, Merged, Stamp

NAMES = ("a", "b")
TOKENS = 10
MOST_STEPS = 8
"""Ids that one process may make: each has a range of its own."""
FIRST, SUCCESSOR = 9, 3
"""The random part of the epochs of the first syncer and of its successor: the lower one comes later."""


class Published(NamedTuple):
    """A published state: all ids in it, the sums of everybody, and what was merged in this one version."""

    stamp: Stamp
    value: int
    map: tuple[Merged, ...] = ()
    record: tuple[Merged, ...] = ()


NOTHING = Published(Stamp(NO_EPOCH, 0), 0)


class Offer(NamedTuple):
    """A contribution with its bytes."""

    key: MemberKey
    message: Contribution
    ids: int


class Handed(NamedTuple):
    """What a learner that is reached has adopted."""

    key: MemberKey
    state: Published


def range_of(key: MemberKey) -> int:
    """All ids that this process may ever make."""
    place = NAMES.index(key.name) + len(NAMES) * (key.incarnation - 1)
    return ((1 << MOST_STEPS) - 1) << place * MOST_STEPS


@dataclass
class LearnerSide:
    """One learner process. Sets of ids: `u`, `trained`, `given` (up, by a drop), `value` (R), and `encoded` by seq."""

    key: MemberKey
    duty: Duty = field(default_factory=lambda: Duty(0))
    u: int = 0
    trained: int = 0
    given: int = 0
    value: int = 0
    encoded: dict[int, int] = field(default_factory=dict)

    @property
    def progress(self) -> LearnerProgress:
        return self.duty.progress

    @property
    def dropped(self) -> int:
        """Ids that were given up and are not in the adopted state after all."""
        return self.given & ~self.value

    def step(self) -> None:
        """One inner step, which makes one more id."""
        ids = range_of(self.key)
        work = (ids & -ids) << self.trained.bit_count()
        self.u |= work
        self.trained |= work
        self.progress.step(TOKENS)

    def cut(self) -> Offer:
        """Cut all of u, encode it and offer it."""
        progress, cut = self.progress, self.progress.cut()
        self.encoded[cut.seq] = self.u
        message = Contribution(
            fragment=0, seq=cut.seq, after=progress.after, stamp=progress.seen, steps=cut.steps, tokens=cut.tokens,
            cut_step=0, version=0, codec="bf16", body=BODY,
        )  # fmt: skip
        return Offer(self.key, message, self.u)

    def drop(self) -> None:
        """Give u up."""
        self.given |= self.u
        self.u = 0
        self.progress.drop()

    def adopt_full(self, state: Published) -> str:
        """A pulled state arrives. Returns the fate; empty: it is passed over."""
        return self.adopt(state, True)

    def adopt_next(self, state: Published) -> str:
        """A broadcast of one version arrives."""
        return self.adopt(state, False)

    def adopt(self, state: Published, full: bool) -> str:
        duty, progress = self.duty, self.progress
        update = Update(fragment=0, stamp=state.stamp, full=full, codec="fp32", value_bytes=1, body=BODY)
        if not duty.follows(update):
            return ""
        rows = state.map if full else state.record
        adoption = progress.judge(state.stamp, *duty.mine(self.key, update, rows))
        if adoption.fate is Fate.OLD:
            return ""
        assert state.stamp > progress.seen, "an older state is adopted"
        if adoption.fate is Fate.GIVEN_UP:
            self.given |= self.u & ~state.value
            self.u = 0
        if adoption.subtract:
            self.u = without(self.u, self.encoded[adoption.subtract], "it subtracts what is not in u")
        for seq in adoption.restore:
            self.u = joined(self.u, self.encoded[seq], "it takes back what is in u")
        self.forget(progress.adopt(adoption))
        duty.take_map(update, rows)
        self.value = state.value
        assert tuple(sorted(duty.map.values())) == state.map, "its map is not the one of the state"
        return str(adoption.fate)

    def hear_stable(self, stable: Stamp) -> None:
        """A beat says what is durable."""
        self.forget(self.progress.on_stable(stable))

    def forget(self, seqs: tuple[int, ...]) -> None:
        for seq in seqs:
            self.encoded.pop(seq, None)

    def handed(self) -> Handed:
        """What it gives to a syncer that starts again."""
        return Handed(self.key, Published(self.progress.seen, self.value, tuple(sorted(self.duty.map.values()))))

    def remembered(self) -> int:
        """Ids that it could still give: unmerged, or merged and kept."""
        ids = self.u
        for seq, kept in self.progress.kept.items():
            ids |= 0 if kept.cut.void else self.encoded[seq]
        return ids

    def audit(self) -> None:
        """The counters say what the sets hold, and the books balance."""
        progress, tally = self.progress, self.progress.tally
        own, merged = self.u.bit_count(), self.trained & self.value
        assert not self.u & self.value, f"ids {ids_of(self.u & self.value)} are merged and in u"
        assert not self.u & self.given, f"ids {ids_of(self.u & self.given)} were given up and are in u"
        assert (progress.steps, progress.tokens) == (own, own * TOKENS), "the counters do not say what u holds"
        assert tally.merged == merged.bit_count() * TOKENS, "merged is not what is merged"
        assert tally.dropped == self.dropped.bit_count() * TOKENS, "dropped is not what was dropped"
        assert not tally.lost, "a state called stable was forgotten"
        assert tally.trained == tally.merged + progress.tokens + tally.dropped, "the books do not balance"
        entry = self.duty.map.get(self.key)
        assert progress.after == (entry.seq if entry else 0), "after is not the newest merged seq"
        self.audit_bytes()

    def audit_bytes(self) -> None:
        """What may turn out merged is here and in u; what may turn out unmerged is here and in the adopted state."""
        for seq, cut in self.progress.sent.items():
            assert seq in self.encoded, "sent, and its bytes are forgotten"
            assert cut.void or not self.encoded[seq] & ~self.u, "sent, and not in u"
        for seq, kept in self.progress.kept.items():
            assert seq in self.encoded, "kept without its bytes"
            assert kept.cut.void or not self.encoded[seq] & ~self.value, "kept, though it is not merged"


def sealed(recovery: Recovery) -> Any:
    """The desk of the fragment as Reception leaves it once the fleet has been asked."""
    desk = SimpleNamespace(stamp=None, intake=None)
    syncer = SimpleNamespace(
        desk=[desk], ident=SUCCESSOR, count_merged=lambda: None, move=lambda turn: None, save=lambda why: why
    )
    reception = Reception(cast(SyncerMachine, syncer))
    reception.recovery = recovery
    assert reception.judge_recovery(now=0.0), "the recovery does not end"
    return desk


@dataclass
class SyncerSide:
    """The syncer, or (not `up`) its disk alone. `state`: what is published; `bytes`: of what is held."""

    disk: Published
    up: bool = False
    state: Published = NOTHING
    intake: Intake = field(default_factory=Intake)
    bytes: dict[MemberKey, int] = field(default_factory=dict)

    def offer(self, offer: Offer) -> str:
        """A contribution arrives with its bytes: as Intakes does, in one go. Returns what becomes of it."""
        key, message = offer.key, offer.message
        epoch, known = self.state.stamp.epoch, (self.intake.merged_seq(key), self.intake.held_seq(key))
        if message.seq in known and message.stamp.epoch == epoch:
            return "known"
        refusal = self.intake.judge(key, message, epoch)
        if refusal is not None:
            return f"refused: {refusal}"
        handle = ContributionId(key.name, key.incarnation, 0, message.seq)
        before = self.intake.hold(Held(id=handle, message=message, arrived_at=0.0, norm=1.0))
        assert before is None or before.id.seq < message.seq, "an older one replaces a newer one"
        self.bytes[key] = offer.ids
        return "replaces" if before else "held"

    def is_refused_for_ever(self, offer: Offer) -> bool:
        """Whether it is refused now for what can only stay so: epochs and merged seqs only grow."""
        epoch = self.state.stamp.epoch if self.up else Epoch(self.disk.stamp.epoch.counter + 1, SUCCESSOR)
        refusal = self.intake.judge(offer.key, offer.message, epoch)
        if refusal is Refusal.AFTER:
            return offer.message.after < self.intake.merged_seq(offer.key)
        return refusal is Refusal.EPOCH

    def close(self) -> Published:
        """A round closes with all that is held, and its state is published."""
        stamp, value = self.state.stamp, self.state.value
        taken, record = self.intake.close()
        for held in taken:
            value = joined(value, self.bytes[held.id.key], "it is merged twice")
        self.bytes = {key: ids for key, ids in self.bytes.items() if key in self.intake.held}
        self.intake._before = self.intake.map
        map_ = tuple(sorted(self.intake.map.values()))
        self.state = Published(Stamp(stamp.epoch, stamp.version + 1), value, map_, record)
        return self.state

    def void(self) -> None:
        """A merge comes to nothing."""
        self.intake.close()
        self.intake.reopen()
        self.bytes.clear()

    def save(self) -> Stamp:
        """What is published is durable. Returns its stamp."""
        self.disk = self.state._replace(record=())
        return self.disk.stamp

    def crash(self) -> None:
        """The disk is all that is left."""
        self.up, self.state, self.intake, self.bytes = False, NOTHING, Intake(), {}

    def restart(self, *reached: Handed) -> Published:
        """The newest of the disk and of those that are reached, under a new epoch that is durable at once."""
        disk, value = self.disk, self.disk.value
        recovery = Recovery(ends_at=0.0, highest=disk.stamp.epoch, best=[disk.stamp], maps=[disk.map])
        for key, state in reached:
            stamp = state.stamp
            hello = Hello(name=key.name, incarnation=key.incarnation, run_id="run", epoch=stamp.epoch, stamps=(stamp,))
            back = Handback(fragment=0, stamp=stamp, codec="fp32", value_bytes=1, body=BODY)
            if recovery.hear(key, hello) and recovery.fetch(key, back) and recovery.take(back):
                recovery.taken(key, 0, state.map)
                value = state.value
        newest = max([disk.stamp, *(state.stamp for _, state in reached)])
        assert recovery.best == [newest], "it does not go on from the newest"
        desk = sealed(recovery)
        assert desk.stamp.epoch > newest.epoch, "the successor's epoch is no higher"
        assert desk.stamp.version == newest.version, "its version is not that of what it goes on from"
        self.up, self.intake = True, desk.intake
        self.disk = self.state = Published(desk.stamp, value, tuple(sorted(desk.intake.map.values())))
        return self.state

    def audit(self) -> None:
        """Every map says whose work is in its state."""
        for state in (self.state, self.disk):
            whose = 0
            for entry in state.map:
                ids = state.value & range_of(entry.key)
                whose |= ids
                steps = ids.bit_count()
                assert (entry.steps, entry.tokens) == (steps, steps * TOKENS), "the map does not say what is merged"
            assert whose == state.value, "somebody is merged who is not in the map"
