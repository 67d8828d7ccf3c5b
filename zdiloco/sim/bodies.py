"""Bodies without tensors: what the real ones do with values, done with sets of ids (`work.py`).

u = values - R is computed, never remembered, just as the real body computes it; whatever is subtracted that is not
there, or added twice, fails at once. Where a world is not `exact`, all sets are empty and only counters are left.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isnan

from zdiloco.agenda import Broken
from zdiloco.core import machine as m
from zdiloco.core.bundles import bundle_id
from zdiloco.core.messages import Body, Bundle, Contribution, Update
from zdiloco.core.progress import add_record
from zdiloco.core.start import KnownState
from zdiloco.sim.sizes import BYTES, NUMEL
from zdiloco.sim.work import Parcel, digest_of, joined, without
from zdiloco.units import ContributionId, Epoch, MemberKey, Merged, Stamp

MOST_MERGES = 1024
Put = Callable[[str, Parcel], Body]
"""Offers a parcel under a name; under a name in use, says again what is offered there."""


@dataclass(frozen=True, slots=True)
class State:
    """One published state of one fragment. `map`: the sums of everybody; at a learner, the record that it came with."""

    stamp: Stamp
    value: int
    map: tuple[Merged, ...]


@dataclass
class SyncerDisk:
    """What a syncer has made durable. `full`: nothing more can be written."""

    run_id: str = ""
    shares: tuple[float, ...] = ()
    states: list[State] = field(default_factory=list)
    replaced: tuple[MemberKey, ...] = ()
    live: tuple[MemberKey, ...] = ()
    full: bool = False

    def known(self) -> KnownState | None:
        """What a process that starts here goes on from."""
        if not self.states:
            return None
        return KnownState(
            run_id=self.run_id, epoch=max(s.stamp.epoch for s in self.states), layout_digest="layout",
            numels=(NUMEL,) * len(self.states), shares=self.shares, stamps=tuple(s.stamp for s in self.states),
            maps=tuple(s.map for s in self.states), replaced=self.replaced, live=self.live,
        )  # fmt: skip

    def copy(self) -> "SyncerDisk":
        """Another disk with the same on it: that of a stand-by."""
        return SyncerDisk(self.run_id, self.shares, list(self.states), self.replaced, self.live)


def id_of(key: MemberKey, message: Contribution | Bundle) -> ContributionId:
    """The handle of a contribution's bytes, or a bundle's."""
    if isinstance(message, Bundle):
        return bundle_id(key, message)
    return ContributionId(key.name, key.incarnation, message.fragment, message.seq)


class SyncerBody:
    """Carries out the syncer's actions on ids; `do` returns the events that answer them."""

    def __init__(
        self, disk: SyncerDisk, num_fragments: int, run_id: str, put: Put, delta_codec: str = "none"
    ) -> None:  # fmt: skip
        self.disk, self.run_id, self.put, self.delta_codec = disk, run_id, put, delta_codec
        self.shares = (1 / num_fragments,) * num_fragments
        self.states = list(disk.states) or [State(Stamp(Epoch(0, 0), -1), 0, ())] * num_fragments
        self.payloads: dict[ContributionId, int] = {}
        self.held_bytes: dict[ContributionId, int] = {}
        self.fetched: dict[tuple[MemberKey, str], Parcel] = {}
        self.norms: dict[ContributionId, float] = {}
        """What screening finds where it is not 1; NaN where the values are not finite."""
        self.merges: deque[m.Merge] = deque(maxlen=MOST_MERGES)

    def take(self, key: MemberKey, message: m.Fetchable, parcel: Parcel) -> m.Fetched:
        """A body is here."""
        if isinstance(message, Contribution | Bundle):
            self.payloads[id_of(key, message)] = parcel.value
            self.held_bytes[id_of(key, message)] = message.body.nbytes
            if isinstance(message, Bundle):
                self.norms[bundle_id(key, message)] = max(member.norm for member in message.members)
        else:
            self.fetched[key, message.body.transfer] = parcel
        return m.Fetched(key=key, message=message)

    def do(self, action: m.SyncerAction) -> list[m.SyncerEvent]:
        """Carry one action out."""
        if isinstance(action, m.TakeLayout):
            self.fetched.pop((action.key, action.message.body.transfer))
            numels = (NUMEL,) * len(self.shares)
            return [m.LayoutTaken(key=action.key, digest="layout", numels=numels, shares=self.shares)]
        if isinstance(action, m.TakeInitial):
            self.fetched.pop((action.key, action.message.body.transfer))
            return [m.InitialTaken(key=action.key, fragment=action.message.fragment)]
        if isinstance(action, m.TakeHandback):
            return [self._take_handback(action)]
        if isinstance(action, m.Screen):
            norm = self.norms.get(action.id, 1.0)
            return [m.Screened(id=action.id, reason="non_finite" if isnan(norm) else "", norm=norm, values=1.0)]
        if isinstance(action, m.Merge):
            return [self._merge(action)]
        if isinstance(action, m.Restamp):
            self.states = [State(t, s.value, s.map) for t, s in zip(action.stamps, self.states, strict=True)]
        elif isinstance(action, m.Free):
            self._free(action.id)
        elif isinstance(action, m.CancelFetch):
            self.cancel(action.key, action.message)
        return []

    def cancel(self, key: MemberKey, message: m.Fetchable) -> None:
        """The bytes of this body are needed no more."""
        if isinstance(message, Contribution | Bundle):
            self._free(id_of(key, message))
        else:
            self.fetched.pop((key, message.body.transfer), None)

    def _free(self, name: ContributionId) -> None:
        self.payloads.pop(name, None)
        self.held_bytes.pop(name, None)

    def _take_handback(self, action: m.TakeHandback) -> m.HandbackTaken:
        key, message = action.key, action.message
        parcel = self.fetched.pop((key, message.body.transfer))
        self.states[message.fragment] = State(message.stamp, parcel.value, parcel.rows())
        return m.HandbackTaken(key=key, fragment=message.fragment, stamp=message.stamp, map_=parcel.rows())

    def _merge(self, action: m.Merge) -> m.MergeDone:
        state = self.states[action.fragment]
        if action.stamp <= state.stamp:
            raise Broken("stamps fall", f"fragment {action.fragment}: {action.stamp} after {state.stamp}")
        merged = 0
        for part in action.parts:
            merged = joined(merged, self.payloads[part.id], "two contributions of one merge")
        value = joined(state.value, merged, "merged twice")
        self.merges.append(action)
        map_ = tuple(add_record({entry.key: entry for entry in state.map}, action.merged).values())
        self.states[action.fragment] = State(action.stamp, value, map_)
        return m.MergeDone(update=self.update(action.fragment, action.merged, state))

    def update(
        self, fragment: int, record: tuple[Merged, ...] | None = None, before: State | None = None
    ) -> Update:  # fmt: skip
        """Offer the newest state of a fragment: with this record, perhaps as a delta to the state before; or whole,
        with the map."""
        state, codec, base = self.states[fragment], "fp32", None
        value = state.value
        if before is not None and self.delta_codec != "none":
            value, codec, base = without(value, before.value, "a value shrinks"), self.delta_codec, before.stamp
        full, epoch = record is None, state.stamp.epoch
        name = f"{'s' if full else 'u'}/{fragment}/{epoch.counter}.{epoch.ident:x}/{state.stamp.version}"
        body = self.put(name, Parcel.of(value, BYTES[codec], state.map if record is None else record))
        return Update(
            fragment=fragment, stamp=state.stamp, full=full, codec=codec, value_bytes=BYTES[codec], body=body,
            value_digest=digest_of(state.value), base=base,
        )  # fmt: skip

    def save(self, states: list[State], action: m.Save) -> m.Saved | m.SaveFailed:
        """Make these states durable, unless the disk is full."""
        if self.disk.full:
            return m.SaveFailed(reason="no space left on device")
        self.disk.run_id, self.disk.shares, self.disk.states = self.run_id, self.shares, states
        self.disk.replaced, self.disk.live = action.replaced, action.live
        return m.Saved(stamps=tuple(state.stamp for state in states))


class LearnerBody:
    """Carries out a learner's actions on ids."""

    def __init__(self, num_fragments: int, put: Put, codec: str = "fp32") -> None:
        self.put, self.codec = put, codec
        self.values = [0] * num_fragments
        self.reference = [0] * num_fragments
        self.encoded: dict[tuple[int, int], int] = {}
        self.updates: dict[tuple[int, Stamp, bool], tuple[Update, State]] = {}
        self.prepared: dict[int, tuple[m.Prepare, int, int, State]] = {}
        self.adopted: dict[int, State] = {}
        self.dropped = [0] * num_fragments
        self.inner = [0] * num_fragments
        self.loans: dict[int, int] = {}

    def train(self, work: int) -> None:
        """One more step is in the values of every fragment."""
        for fragment, values in enumerate(self.values):
            self.values[fragment] = values | 1 << work
            self.inner[fragment] |= 1 << work

    def learn(self, update: Update, parcel: Parcel) -> None:
        """The body of an update has come."""
        state = State(update.stamp, parcel.value, parcel.rows())
        self.updates[update.fragment, update.stamp, update.full] = (update, state)

    def progress(self, fragment: int) -> int:
        """u = values - R."""
        return without(self.values[fragment], self.reference[fragment], "values miss a part of R")

    def do(self, action: m.LearnerAction) -> list[m.LearnerEvent]:
        """Carry one action out. Returns the events that answer it."""
        if isinstance(action, m.Snapshot):
            ids = self.encoded[action.fragment, action.seq] = self.progress(action.fragment)
            codec = action.codec or self.codec
            body = self.put(contribution_name(action.fragment, action.seq), Parcel(ids, BYTES[codec]))
            return [m.Encoded(fragment=action.fragment, seq=action.seq, codec=codec, body=body)]
        if isinstance(action, m.Prepare):
            return [self._prepare(action)]
        if isinstance(action, m.Adopt):
            self._adopt(action)
        elif isinstance(action, m.Drop):
            self.dropped[action.fragment] |= self.progress(action.fragment)
            self.values[action.fragment] = self.reference[action.fragment]
        elif isinstance(action, m.Forget):
            for seq in action.seqs:
                self.encoded.pop((action.fragment, seq), None)
        elif isinstance(action, m.LookInner):
            return [m.InnerSeen(kind="a set", fragments=tuple(range(len(self.inner))))]
        elif isinstance(action, m.DropLoan):
            self.loans.pop(action.loan.number, None)
        elif isinstance(action, m.Discard):
            update = action.update
            self.updates.pop((update.fragment, update.stamp, update.full), None)
        return []

    def _prepare(self, action: m.Prepare) -> m.Prepared | m.Misfit:
        here = [self.updates.get((action.fragment, action.stamp, full)) for full in (True, False)]
        update, state = next(each for each in here if each is not None)
        if update.base is not None:
            state = replace(state, value=state.value | self.reference[action.fragment])
        if digest_of(state.value) != update.value_digest:
            return m.Misfit(fragment=action.fragment, serial=action.serial, reason="another set of ids")
        subtract = self.encoded[action.fragment, action.subtract] if action.subtract else 0
        restore = 0
        for seq in action.restore:
            restore = joined(restore, self.encoded[action.fragment, seq], "restored twice")
        self.prepared[action.fragment] = (action, subtract, restore, state)
        return m.Prepared(fragment=action.fragment, serial=action.serial)

    def _adopt(self, action: m.Adopt) -> None:
        prepare, subtract, restore, state = self.prepared.pop(action.fragment)
        before = self.adopted.get(action.fragment)
        if state.stamp != action.stamp or (before is not None and action.stamp <= before.stamp):
            raise Broken("stamps fall", f"fragment {action.fragment} adopts {action.stamp} (prepared {state.stamp})")
        u = without(self.progress(action.fragment), subtract, "subtracts work that is not there")
        u = joined(u, restore, "takes back what it holds")
        if prepare.reset:
            self.dropped[action.fragment] |= u
        self.values[action.fragment] = state.value if prepare.reset else joined(state.value, u, "merged and held")
        self.reference[action.fragment] = state.value
        self.adopted[action.fragment] = state


def contribution_name(fragment: int, seq: int) -> str:
    """The name of a contribution's transfer."""
    return f"c/{fragment}/{seq}"
