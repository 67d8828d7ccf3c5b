"""Bodies without tensors: work is a set of ids, one per inner step, so that loss and double counting are seen exactly.

A set of ids is one whole number with a bit per id (fast to join and compare). u = values - R is computed, never
remembered, just as the real body computes it; whatever is subtracted that is not there, or added twice, fails at once.
"""

from dataclasses import dataclass, field
from math import isnan
from typing import Any

from zdiloco.core import machine as m
from zdiloco.core.messages import Body, Contribution, Update
from zdiloco.core.progress import add_record
from zdiloco.core.start import KnownState
from zdiloco.units import ContributionId, Epoch, MemberKey, Merged, Stamp

NBYTES = 20_000
NUMEL = 5_000
"""Bytes of every encoded contribution and value, and values of a fragment: three fit the smallest budget."""


def body_of(name: str, nbytes: int = NBYTES) -> Body:
    return Body(transfer=name, nbytes=nbytes, chunk_bytes=1 << 20, digest=0)


@dataclass(frozen=True)
class State:
    """One published state of one fragment."""

    stamp: Stamp
    value: int
    map: tuple[Merged, ...]


@dataclass
class SyncerDisk:
    """What a syncer has made durable."""

    run_id: str = ""
    shares: tuple[float, ...] = ()
    states: list[State] = field(default_factory=list)

    def known(self) -> KnownState | None:
        if not self.states:
            return None
        return KnownState(
            run_id=self.run_id, epoch=max(s.stamp.epoch for s in self.states), layout_digest="layout",
            numels=(NUMEL,) * len(self.states), shares=self.shares, stamps=tuple(s.stamp for s in self.states),
            maps=tuple(s.map for s in self.states),
        )  # fmt: skip


class SyncerBody:
    """Carries out the syncer's actions on ids; `answers` are the events that heavy actions answer with."""

    def __init__(self, disk: SyncerDisk, num_fragments: int, run_id: str) -> None:
        self.disk, self.run_id = disk, run_id
        self.shares = (1 / num_fragments,) * num_fragments
        self.states = list(disk.states) or [State(Stamp(Epoch(0, 0), -1), 0, ())] * num_fragments
        self.payloads: dict[ContributionId, int] = {}
        self.norms: dict[ContributionId, float] = {}
        """What screening finds where it is not 1; NaN where the values are not finite."""
        self.merges: list[tuple[m.Merge, int]] = []

    def fetched(self, key: MemberKey, message: Contribution, ids: int) -> m.Fetched:
        self.payloads[ContributionId(key.name, key.incarnation, message.fragment, message.seq)] = ids
        return m.Fetched(key=key, message=message)

    def do(self, action: Any, returned: dict[tuple[MemberKey, int, Stamp], State] | None = None) -> list[Any]:
        """Carry one action out. Returns the events that answer it."""
        if isinstance(action, m.TakeLayout):
            numels = (NUMEL,) * len(self.shares)
            return [m.LayoutTaken(key=action.key, digest="layout", numels=numels, shares=self.shares)]
        if isinstance(action, m.TakeInitial):
            return [m.InitialTaken(key=action.key, fragment=action.message.fragment)]
        if isinstance(action, m.TakeHandback):
            fragment = action.message.fragment
            state = (returned or {})[action.key, fragment, action.message.stamp]
            self.states[fragment] = state
            return [m.HandbackTaken(key=action.key, fragment=fragment, stamp=state.stamp, map_=state.map)]
        if isinstance(action, m.Screen):
            norm = self.norms.get(action.id, 1.0)
            return [m.Screened(id=action.id, reason="non_finite" if isnan(norm) else "", norm=norm, values=1.0)]
        if isinstance(action, m.Merge):
            return [self._merge(action)]
        if isinstance(action, m.Restamp):
            self.states = [State(t, s.value, s.map) for t, s in zip(action.stamps, self.states, strict=True)]
        if isinstance(action, m.Free):
            self.payloads.pop(action.id, None)
        if isinstance(action, m.CancelFetch) and isinstance(action.message, Contribution):
            key, message = action.key, action.message
            self.payloads.pop(ContributionId(key.name, key.incarnation, message.fragment, message.seq), None)
        return []

    def _merge(self, action: m.Merge) -> m.MergeDone:
        state = self.states[action.fragment]
        merged = 0
        for part in action.parts:
            merged = joined(merged, self.payloads[part.id], "two contributions of one merge")
        value = joined(state.value, merged, "merged twice")
        self.merges.append((action, merged))
        map_ = tuple(add_record({entry.key: entry for entry in state.map}, action.merged).values())
        self.states[action.fragment] = State(action.stamp, value, map_)
        return m.MergeDone(update=self.update(action.fragment, full=False))

    def update(self, fragment: int, full: bool) -> Update:
        state = self.states[fragment]
        name = f"{'s' if full else 'u'}/{state.stamp.epoch.counter}/{fragment}/{state.stamp.version}"
        return Update(
            fragment=fragment, stamp=state.stamp, full=full, codec="fp32", value_bytes=NBYTES, body=body_of(name)
        )

    def save(self) -> m.Saved:
        self.disk.run_id, self.disk.shares, self.disk.states = self.run_id, self.shares, list(self.states)
        return m.Saved(stamps=tuple(state.stamp for state in self.states))


class LearnerBody:
    """Carries out a learner's actions on ids."""

    def __init__(self, num_fragments: int) -> None:
        self.values = [0] * num_fragments
        self.reference = [0] * num_fragments
        self.encoded: dict[tuple[int, int], int] = {}
        self.updates: dict[tuple[int, Stamp, bool], State] = {}
        self.prepared: dict[int, tuple[m.Prepare, int, int, State]] = {}
        self.adopted: dict[int, State] = {}

    def train(self, work: int) -> None:
        for fragment, values in enumerate(self.values):
            self.values[fragment] = values | 1 << work

    def learn(self, fragment: int, state: State, full: bool) -> None:
        """The body of an update has come."""
        self.updates[fragment, state.stamp, full] = state

    def progress(self, fragment: int) -> int:
        """u = values - R."""
        return without(self.values[fragment], self.reference[fragment], "values miss a part of R")

    def do(self, action: Any) -> list[Any]:
        """Carry one action out. Returns the events that answer it."""
        if isinstance(action, m.Snapshot):
            self.encoded[action.fragment, action.seq] = self.progress(action.fragment)
            body = body_of(f"c/{action.fragment}/{action.seq}")
            return [m.Encoded(fragment=action.fragment, seq=action.seq, codec="fp32", body=body)]
        if isinstance(action, m.Prepare):
            self._prepare(action)
            return [m.Prepared(fragment=action.fragment, serial=action.serial)]
        if isinstance(action, m.Adopt):
            self._adopt(action)
        elif isinstance(action, m.Drop):
            self.values[action.fragment] = self.reference[action.fragment]
        elif isinstance(action, m.Forget):
            for seq in action.seqs:
                self.encoded.pop((action.fragment, seq), None)
        elif isinstance(action, m.Discard):
            update = action.update
            self.updates.pop((update.fragment, update.stamp, update.full), None)
        return []

    def _prepare(self, action: m.Prepare) -> None:
        states = [self.updates.get((action.fragment, action.stamp, full)) for full in (True, False)]
        subtract = self.encoded[action.fragment, action.subtract] if action.subtract else 0
        restore = 0
        for seq in action.restore:
            restore = joined(restore, self.encoded[action.fragment, seq], "restored twice")
        state = next(state for state in states if state is not None)
        self.prepared[action.fragment] = (action, subtract, restore, state)

    def _adopt(self, action: m.Adopt) -> None:
        prepare, subtract, restore, state = self.prepared.pop(action.fragment)
        assert state.stamp == action.stamp
        u = without(self.progress(action.fragment), subtract, "subtracts work that is not there")
        u = joined(u, restore, "takes back what it holds")
        self.values[action.fragment] = state.value if prepare.reset else joined(state.value, u, "merged and held")
        self.reference[action.fragment] = state.value
        self.adopted[action.fragment] = state


def joined(one: int, other: int, fault: str) -> int:
    """The union of two sets that must not share an id."""
    assert not one & other, f"{fault}: ids {ids_of(one & other)[:9]}"
    return one | other


def without(whole: int, part: int, fault: str) -> int:
    """A set without a part that must be in it."""
    assert whole & part == part, f"{fault}: ids {ids_of(part & ~whole)[:9]}"
    return whole & ~part


def ids_of(bits: int) -> list[int]:
    """The ids in a set, in order."""
    ids = []
    while bits:
        low = bits & -bits
        ids.append(low.bit_length() - 1)
        bits ^= low
    return ids
