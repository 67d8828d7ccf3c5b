"""Bundling at a relay: which contributions of its region it merges before they cross the far link, and when.

Rule: it decides and touches nothing; its body fetches, merges and sends. A contribution that the syncer awaits (it has
given credit for it) and whose bytes are here waits for the others of its region, but only for so long that the syncer
does not become impatient. Whatever cannot be bundled, or does not pay, goes up as it is. Nothing is settled here: bytes
are kept until the syncer has said what became of their contribution.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from zdiloco.core.bundle_messages import MOST_MEMBERS
from zdiloco.core.messages import Ack, Contribution, Refused
from zdiloco.core.moves import moved
from zdiloco.units import FragmentId, MemberKey

Place = tuple[MemberKey, FragmentId]
WORTH = 0.8
"""A bundle that is not smaller than so much of what it stands for does not pay."""


class Stage(StrEnum):
    """Where a contribution is at this relay."""

    COMING = "coming"
    """Its bytes are on their way here, or being looked at."""
    READY = "ready"
    """Its bytes are here and sound."""
    BUNDLED = "bundled"
    """It is in a bundle that is being made, or on its way up."""
    FORWARDED = "forwarded"
    """It goes up as it is."""


class StageEvent(StrEnum):
    """What moves it on; that it is settled, replaced or lost ends it, wherever it is."""

    SOUND = "its bytes are here and sound"
    UNSOUND = "its bytes are here, and for the syncer to judge"
    BUNDLE = "bundled with others"
    ALONE = "nothing to bundle it with, or it does not pay"
    UNBUNDLED = "its bundle has come to nothing"


_S, _E = Stage, StageEvent
TABLE: dict[tuple[Stage, StageEvent], Stage] = {
    (_S.COMING, _E.SOUND): _S.READY,
    (_S.COMING, _E.UNSOUND): _S.FORWARDED,
    (_S.READY, _E.BUNDLE): _S.BUNDLED,
    (_S.READY, _E.ALONE): _S.FORWARDED,
    (_S.BUNDLED, _E.UNBUNDLED): _S.FORWARDED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gather:
    """Merge these contributions into bundle `number` and offer it; answered by `offered`, or by `failed`."""

    number: int
    fragment: FragmentId
    members: tuple[tuple[MemberKey, Contribution], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """Answer the syncer's credits for this contribution with its own bytes from here on."""

    place: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """The bytes of this contribution are needed no more."""

    place: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Withdraw:
    """The bytes of this bundle are needed no more; the syncer is told `gone` if it asks for them."""

    number: int


BundlingAction = Gather | Forward | Release | Withdraw


@dataclass(slots=True)
class Entry:
    """One contribution. `asked_at`: when the syncer first gave credit for it; `bundle`: the one that it is in."""

    message: Contribution
    stage: Stage = Stage.COMING
    asked_at: float | None = None
    bundle: int = 0

    def move(self, event: StageEvent) -> None:
        """Go where TABLE says; anything else is our mistake."""
        self.stage = moved(TABLE, self.stage, event, f"contribution {self.message.seq}")


@dataclass(slots=True)
class _Bundle:
    """`ends`: when it is given up unless the syncer has asked for it (`taken`)."""

    fragment: FragmentId
    members: set[MemberKey]
    ends: float
    taken: bool = False


@dataclass(kw_only=True, slots=True)
class BundlingCounters:
    """What this relay did since its start, in contributions but for `bundles` and `refused`."""

    bundles: int = 0
    bundled: int = 0
    refused: int = 0
    forwarded: int = 0


@dataclass(slots=True)
class Bundling:
    """All contributions behind one relay. `wait_s`: how long one waits for others; `give_up_s`: how long a bundle waits
    for the syncer's credit; `coming_s`: how long the syncer is let wait for bytes that are on their way here; `cost`:
    how many bytes a bundle of a fragment has."""

    wait_s: float
    give_up_s: float
    coming_s: float
    cost: Callable[[FragmentId], int]
    entries: dict[Place, Entry] = field(default_factory=dict)
    counters: BundlingCounters = field(default_factory=BundlingCounters)
    number: int = 0
    _declined: set[Place] = field(default_factory=set)
    _passed: dict[Place, Contribution] = field(default_factory=dict)
    _known: set[MemberKey] = field(default_factory=set)
    _bundles: dict[int, _Bundle] = field(default_factory=dict)

    # ---- contributions

    def offered(self, key: MemberKey, message: Contribution) -> list[BundlingAction]:
        """A learner contributes, and its bytes will be here; a newer contribution replaces an older one."""
        place = (key, message.fragment)
        self._known.add(key)
        self._declined.discard(place)
        self._passed.pop(place, None)
        known = self.entries.get(place)
        if known is not None and known.message == message:
            return []
        actions = self._end(place) if known is not None else []
        self.entries[place] = Entry(message)
        return actions

    def passes(self, key: MemberKey, message: Contribution) -> bool:
        """Whether this contribution is left to syncer and learner, since it took too long to come here."""
        return self._passed.get((key, message.fragment)) == message

    def declined(self, key: MemberKey, fragment: FragmentId) -> None:
        """A learner cannot answer now: nobody waits for it on this fragment until it contributes again."""
        self._declined.add((key, fragment))

    def looked_at(self, key: MemberKey, message: Contribution, *, sound: bool) -> list[BundlingAction]:
        """Its bytes are all here; those that are not sound are the syncer's to judge."""
        place = (key, message.fragment)
        entry = self.entries.get(place)
        if entry is None or entry.message != message or entry.stage is not _S.COMING:
            return []
        if sound:
            entry.move(_E.SOUND)
            return []
        return [self._forward(place, entry, _E.UNSOUND)]

    def lost(self, key: MemberKey, fragment: FragmentId) -> list[BundlingAction]:
        """Its bytes will not come: it is none of ours any more."""
        return self._end((key, fragment))

    def asked(self, key: MemberKey, fragment: FragmentId, now: float) -> list[BundlingAction]:
        """The syncer gives credit for its bytes. If it asks long after it took the bundle, it has lost that; if what it
        asks for is still not here, it gets that as it comes, for it would give up."""
        place = (key, fragment)
        entry = self.entries.get(place)
        if entry is None:
            return []
        entry.asked_at = now if entry.asked_at is None else entry.asked_at
        if entry.stage is _S.COMING and now >= entry.asked_at + self.coming_s:
            self._declined.add(place)
            self._passed[place] = entry.message
            return self._end(place)
        bundle = self._bundles.get(entry.bundle)
        return self.failed(entry.bundle) if bundle and bundle.taken and now >= bundle.ends else []

    def answered(self, key: MemberKey, message: Ack | Refused) -> list[BundlingAction]:
        """The syncer says what became of a contribution: held, merged or refused, its bytes have done their duty."""
        entry = self.entries.get((key, message.fragment))
        if entry is None:
            return []
        seq = entry.message.seq
        here = (message.held, message.merged) if isinstance(message, Ack) else (message.seq,)
        return self._end((key, message.fragment)) if seq in here or max(here) > seq else []

    def gone(self, key: MemberKey) -> list[BundlingAction]:
        """A learner is here no more."""
        self._known.discard(key)
        self._declined = {place for place in self._declined if place[0] != key}
        self._passed = {place: message for place, message in self._passed.items() if place[0] != key}
        places = [place for place in self.entries if place[0] == key]
        return [action for place in places for action in self._end(place)]

    # ---- bundles

    def taken(self, number: int, now: float) -> None:
        """The syncer gives credit for a bundle: it has taken it."""
        bundle = self._bundles.get(number)
        if bundle is not None and not bundle.taken:
            bundle.taken, bundle.ends = True, now + self.give_up_s

    def awaits(self, number: int) -> bool:
        """Whether a bundle is still wanted."""
        return number in self._bundles

    def failed(self, number: int) -> list[BundlingAction]:
        """A bundle was refused, or could not be made or sent: those in it go up one by one."""
        bundle = self._bundles.pop(number, None)
        if bundle is None:
            return []
        self.counters.refused += 1
        places = [(key, bundle.fragment) for key in sorted(bundle.members)]
        forwards = [self._forward(place, self.entries[place], _E.UNBUNDLED) for place in places]
        return [*forwards, Withdraw(number=number)]

    def reset(self) -> list[BundlingAction]:
        """Another epoch: what the syncer before has taken is nothing to this one, which asks anew for what it wants."""
        for entry in self.entries.values():
            entry.asked_at = None
        return [action for number in list(self._bundles) for action in self.failed(number)]

    # ---- time

    def turn(self, now: float) -> list[BundlingAction]:
        """Bundle what has waited long enough, or waits for nobody; give up what the syncer does not ask for."""
        actions: list[BundlingAction] = []
        for number, bundle in list(self._bundles.items()):
            if not bundle.taken and now >= bundle.ends:
                actions += self.failed(number)
        for fragment, places in self._ready().items():
            if now >= self._due_at(fragment, places):
                actions += self._bundle(fragment, places, now)
        return actions

    def deadline(self) -> float | None:
        """When `turn` is due next; None: not before something happens."""
        due = [self._due_at(fragment, places) for fragment, places in self._ready().items()]
        due += [bundle.ends for bundle in self._bundles.values() if not bundle.taken]
        return min(due, default=None)

    # ---- inside

    def _ready(self) -> dict[FragmentId, list[Place]]:
        found: dict[FragmentId, list[Place]] = {}
        for place, entry in self.entries.items():
            if entry.stage is _S.READY and entry.asked_at is not None:
                found.setdefault(place[1], []).append(place)
        return found

    def _due_at(self, fragment: FragmentId, places: Iterable[Place]) -> float:
        """When those that are ready wait no longer; at once where nobody else is to come, or would make it pay."""
        first = self._asked_first(places)
        waiting, nbytes = 0, 0
        for key in self._known:
            entry = self.entries.get((key, fragment))
            if entry is None:
                waiting += (key, fragment) not in self._declined
            elif entry.stage in (_S.COMING, _S.READY):
                waiting += entry.stage is _S.COMING or entry.asked_at is None
                nbytes = max(nbytes, entry.message.body.nbytes)
        most = (waiting + len(list(places))) * nbytes
        return first + self.wait_s if waiting and self._pays(most, fragment) else first

    def _asked_first(self, places: Iterable[Place]) -> float:
        return min(asked for place in places if (asked := self.entries[place].asked_at) is not None)

    def _bundle(self, fragment: FragmentId, places: list[Place], now: float) -> list[BundlingAction]:
        places = sorted(places)[:MOST_MEMBERS]
        nbytes = sum(self.entries[place].message.body.nbytes for place in places)
        if now >= self._asked_first(places) + self.wait_s:  # for whoever is not here they have waited in vain
            self._declined |= {(key, fragment) for key in self._known if (key, fragment) not in self.entries}
        if len(places) == 1 or not self._pays(nbytes, fragment):
            return [self._forward(place, self.entries[place], _E.ALONE) for place in places]
        self.number += 1
        self._bundles[self.number] = _Bundle(fragment, {key for key, _ in places}, now + self.give_up_s)
        self.counters.bundles += 1
        self.counters.bundled += len(places)
        for place in places:
            self.entries[place].move(_E.BUNDLE)
            self.entries[place].bundle = self.number
        members = tuple((place[0], self.entries[place].message) for place in places)
        return [Gather(number=self.number, fragment=fragment, members=members)]

    def _pays(self, nbytes: int, fragment: FragmentId) -> bool:
        return self.cost(fragment) <= WORTH * nbytes

    def _forward(self, place: Place, entry: Entry, event: StageEvent) -> Forward:
        entry.move(event)
        entry.bundle = 0
        self.counters.forwarded += 1
        return Forward(place=place)

    def _end(self, place: Place) -> list[BundlingAction]:
        """A contribution is over; a bundle that is not settled goes on without asking: the syncer judges it whole."""
        entry = self.entries.pop(place, None)
        if entry is None:
            return []
        actions: list[BundlingAction] = [Release(place=place)]
        bundle = self._bundles.get(entry.bundle)
        if bundle is not None:
            bundle.members.discard(place[0])
            if not bundle.members:
                del self._bundles[entry.bundle]
                actions.append(Withdraw(number=entry.bundle))
        return actions
