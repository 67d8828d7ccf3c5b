"""How a syncer comes to have state: from a donor's initial values, or from its disk and what the fleet hands back.

Rule: nothing of a new epoch is seen by anybody before its manifest is durable. A donor that dies half-way is
replaced; whoever was not asked waits and is told so.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from zdiloco.core.machine import CancelFetch, Fetch, Note, Send, SyncerAction
from zdiloco.core.membership import Fleet, MemberState
from zdiloco.core.messages import Donate, Handback, HandbackRequest, Hello, InitialOffer, LayoutOffer
from zdiloco.units import NO_EPOCH, Epoch, MemberKey, Merged, Stamp


class SyncerPhase(StrEnum):
    """What a syncer is doing."""

    EMPTY = "empty"
    """Has no values; waits for a donor's."""
    RECOVERING = "recovering"
    """Has a state from disk; asks whether the fleet holds a newer one."""
    SEALING = "sealing"
    """Writes the first manifest of its epoch; nobody has seen anything of it."""
    RUNNING = "running"
    """Calls, merges and publishes."""
    DRAINING = "draining"
    """The target is reached, or every learner has left: open rounds close, no new ones open."""
    SAVING = "saving"
    """Writes the last checkpoint."""
    STOPPED = "stopped"
    """Over: nothing is handled any more."""


class SyncerTurn(StrEnum):
    """What moves a syncer on."""

    HAS_ALL = "every fragment has a value"
    WAITED = "the fleet has been asked"
    SEALED = "the epoch is durable"
    TARGET = "target reached"
    ALONE = "every learner has left"
    DRAINED = "no round is open"
    LEAVE = "asked to leave"
    SAVED = "the last checkpoint is durable"
    FENCED = "a higher epoch exists"


_P, _T = SyncerPhase, SyncerTurn
TABLE: dict[tuple[SyncerPhase, SyncerTurn], SyncerPhase] = {
    (_P.EMPTY, _T.HAS_ALL): _P.SEALING,
    (_P.EMPTY, _T.LEAVE): _P.STOPPED,
    (_P.RECOVERING, _T.WAITED): _P.SEALING,
    (_P.RECOVERING, _T.LEAVE): _P.STOPPED,
    (_P.SEALING, _T.SEALED): _P.RUNNING,
    (_P.SEALING, _T.LEAVE): _P.STOPPED,
    (_P.SEALING, _T.FENCED): _P.STOPPED,
    (_P.RUNNING, _T.TARGET): _P.DRAINING,
    (_P.RUNNING, _T.ALONE): _P.DRAINING,
    (_P.RUNNING, _T.LEAVE): _P.SAVING,
    (_P.RUNNING, _T.FENCED): _P.STOPPED,
    (_P.DRAINING, _T.DRAINED): _P.SAVING,
    (_P.DRAINING, _T.LEAVE): _P.SAVING,
    (_P.DRAINING, _T.FENCED): _P.STOPPED,
    (_P.SAVING, _T.SAVED): _P.STOPPED,
    (_P.SAVING, _T.LEAVE): _P.STOPPED,
    (_P.SAVING, _T.FENCED): _P.STOPPED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownState:
    """What a syncer starts from: read from its disk, per fragment the state and whose work is in it, in sums."""

    run_id: str
    epoch: Epoch
    layout_digest: str
    numels: tuple[int, ...]
    shares: tuple[float, ...]
    stamps: tuple[Stamp, ...]
    maps: tuple[tuple[Merged, ...], ...]
    replaced: tuple[MemberKey, ...] = ()
    live: tuple[MemberKey, ...] = ()


def expected(fleet: Fleet, waiting: dict[MemberKey, Hello]) -> tuple[MemberKey, ...]:
    """Who takes part now, or waits to, as a successor should expect them; nobody where they are too many for that."""
    here = {key for state in HERE for key in fleet.in_state[state]}
    here |= {key for key, hello in waiting.items() if not hello.watching}
    return tuple(sorted(here)) if len(here) <= MOST_WAITING else ()


HERE = (MemberState.JOINING, MemberState.LIVE, MemberState.SUSPECT, MemberState.QUARANTINED)
MOST_WAITING = 4096
"""Processes that may wait for a syncer that has no epoch yet; whoever comes then says hello again later."""
ASK_AGAIN_S = 2.0
"""A donor that has offered nothing for so long is asked again: a hello that crossed the question is no loss."""
_FIRST = "it is the first that could be asked"


def wait(waiting: dict[MemberKey, Hello], key: MemberKey, hello: Hello) -> bool:
    """Have a process wait, under its newest hello; False: too many do."""
    if key not in waiting and len(waiting) >= MOST_WAITING:
        return False
    waiting[key] = hello
    return True


@dataclass(slots=True)
class Donation:
    """The initial values as they come in from one donor."""

    donor: MemberKey | None = None
    asked_at: float = 0.0
    heard_at: float = 0.0
    waiting: dict[MemberKey, Hello] = field(default_factory=dict)
    digest: str = ""
    numels: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    layout_offered: bool = False
    offered: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)

    def offer(self, key: MemberKey, hello: Hello, now: float) -> list[SyncerAction]:
        """A process without state says hello: it becomes the donor, or waits. An idle donor is asked again."""
        if hello.watching or not wait(self.waiting, key, hello):
            return []
        if self.donor is None:
            return self._choose(key, now, _FIRST)
        if self.donor == key:
            self.heard_at = now
            if now >= self.asked_at + ASK_AGAIN_S and not self._under_way():
                # the question or an offer was lost: once more, from the beginning
                return self._choose(key, now, "something was lost on the way")
        return []

    def _under_way(self) -> bool:
        layout = self.layout_offered and not self.numels
        return layout or not self.offered <= self.taken

    def _choose(self, key: MemberKey, now: float, why: str) -> list[SyncerAction]:
        self.donor, self.heard_at, self.taken, self.offered, self.layout_offered = key, now, set(), set(), False
        self.asked_at = now
        self.digest, self.numels, self.shares = "", (), ()  # another donor may have another model
        return [Note(what=f"asked {key.name} for the initial values", why=why), Send(key=key, message=Donate())]

    def judge_silence(self, now: float, gone_after_s: float) -> list[SyncerAction]:
        """Replace a donor that has gone silent by the next who waits."""
        if self.donor is None or now - self.heard_at < gone_after_s:
            return []
        lost = self.donor
        self.waiting.pop(lost, None)
        self.donor = None
        note = Note(what=f"donor {lost.name} is gone", why=f"silent for {now - self.heard_at:.1f} s", level="warning")
        return [note, *(self._choose(next(iter(self.waiting)), now, _FIRST) if self.waiting else [])]

    def fetch(self, key: MemberKey, message: LayoutOffer | InitialOffer, now: float) -> list[SyncerAction]:
        """Fetch what the donor offers, the layout first; anybody else's offer is ignored."""
        if key != self.donor:
            return []
        self.heard_at = now
        if isinstance(message, LayoutOffer):
            self.layout_offered = True
        elif not self.layout_offered or message.fragment in self.taken:
            return []
        else:
            self.offered.add(message.fragment)
        return [Fetch(key=key, message=message)]

    @property
    def complete(self) -> bool:
        """Whether layout and every fragment are here."""
        return bool(self.numels) and len(self.taken) == len(self.numels)


@dataclass(slots=True)
class Recovery:
    """What the fleet may hold that is newer than the disk, while a syncer starts again.

    `taking`: per fragment the states on their way into Theta, oldest first, each with the best one before it.
    `expected`: who took part when the disk was written and has not been heard yet, nor a newer process of its name.
    When the last of them is heard the wait is over. Whoever joined after that, and is slow to come, is missed with what
    it alone holds; it takes its own work of it back, as after any branch that died. `heard_at`: of those who wait; who
    was asked and is silent for `gone_after_s` is dead, and others are asked for what it cannot hand back any more.
    `doubted`: by name and fragment, who has handed back what made no sense: what it claims of that counts no more.
    """

    ends_at: float
    highest: Epoch
    best: list[Stamp]
    maps: list[tuple[Merged, ...]]
    pending: dict[tuple[MemberKey, int], Stamp] = field(default_factory=dict)
    taking: dict[int, list[tuple[Handback, Stamp]]] = field(default_factory=dict)
    waiting: dict[MemberKey, Hello] = field(default_factory=dict)
    expected: set[str] = field(default_factory=set)
    gone_after_s: float = math.inf
    heard_at: dict[MemberKey, float] = field(default_factory=dict)
    fetching: dict[tuple[MemberKey, int], Handback] = field(default_factory=dict)
    doubted: set[tuple[str, int]] = field(default_factory=set)

    @property
    def heard_all(self) -> bool:
        """Whether everybody who could be expected is accounted for; nobody could be where the disk names none."""
        return not self.expected and bool(self.waiting)

    def accounted(self, name: str, now: float) -> None:
        """A process of this name is here, or has taken leave; after the last who was expected nobody is waited for."""
        if name in self.expected:
            self.expected.remove(name)
            if not self.expected:
                self.ends_at = min(self.ends_at, now)

    def hear(self, key: MemberKey, hello: Hello) -> list[SyncerAction]:
        """A member tells what it has adopted: ask for what is newer than all that is known or asked for."""
        if not wait(self.waiting, key, hello):
            return []
        if hello.run_id and not hello.watching:  # whoever was never welcome knows no epoch of this run
            self.highest = max(self.highest, hello.epoch)
        again = [fragment for fragment, stamp in enumerate(hello.stamps) if self.pending.get((key, fragment)) == stamp]
        asks = [Send(key=key, message=HandbackRequest(fragment=fragment)) for fragment in again]
        return [*asks, *self._ask(key, hello)]

    def _ask(self, key: MemberKey, hello: Hello) -> list[SyncerAction]:
        actions: list[SyncerAction] = []
        for fragment, stamp in enumerate(hello.stamps[: len(self.best)]):
            asked = max((s for (_, f), s in self.pending.items() if f == fragment), default=self.best[fragment])
            if stamp > max(asked, self.best[fragment]) and (key.name, fragment) not in self.doubted:
                self.pending[key, fragment] = stamp
                actions.append(Send(key=key, message=HandbackRequest(fragment=fragment)))
        return actions

    def alive(self, key: MemberKey, now: float) -> None:
        """A sign of life of a process that waits."""
        if key in self.waiting:
            self.heard_at[key] = now

    def judge_silence(self, now: float) -> list[SyncerAction]:
        """Who was asked and is dead hands nothing back: forget it, and ask others for what it held."""
        dead = {key for key, _ in self.pending if now >= self._silent_at(key)}
        if not dead:
            return []
        for key in dead:
            self.waiting.pop(key, None)
        self.pending = {place: stamp for place, stamp in self.pending.items() if place[0] not in dead}
        in_vain = [(place, message) for place, message in self.fetching.items() if place[0] in dead]
        actions: list[SyncerAction] = []
        for place, message in in_vain:
            del self.fetching[place]
            actions.append(CancelFetch(key=place[0], message=message))
        names = ", ".join(sorted({key.name for key in dead}))
        actions.append(Note(what=f"asks others for what {names} held", why=f"silent for {self.gone_after_s:g} s"))
        return actions + self._ask_all()

    def _ask_all(self) -> list[SyncerAction]:
        return [ask for key, hello in self.waiting.items() for ask in self._ask(key, hello)]

    def doubt(self, key: MemberKey, fragment: int) -> list[SyncerAction]:
        """What this process has handed back of a fragment made no sense, and is lost: others are asked at once."""
        self.doubted.add((key.name, fragment))
        return self._ask_all()

    def _has_ended(self, message: Handback) -> None:
        """Nothing of this body is on its way any more."""
        self.fetching = {place: other for place, other in self.fetching.items() if other != message}

    def _silent_at(self, key: MemberKey) -> float:
        return self.heard_at.get(key, math.inf) + self.gone_after_s

    def fetch(self, key: MemberKey, message: Handback) -> list[SyncerAction]:
        """Fetch a state that was asked for and is still the newest."""
        if (key, message.fragment) not in self.pending or message.stamp <= self.best[message.fragment]:
            self.pending.pop((key, message.fragment), None)
            return []
        self.fetching[key, message.fragment] = message
        return [Fetch(key=key, message=message)]

    def take(self, message: Handback) -> bool:
        """A fetched state goes into Theta, unless a newer one did meanwhile. Returns whether it does."""
        self._has_ended(message)
        if message.stamp <= self.best[message.fragment]:
            return False
        self.taking.setdefault(message.fragment, []).append((message, self.best[message.fragment]))
        self.best[message.fragment] = message.stamp
        return True

    def taken(self, key: MemberKey, fragment: int, map_: tuple[Merged, ...]) -> None:
        """A handed-back state is in Theta: the oldest of those on their way there."""
        self.pending.pop((key, fragment), None)
        self.maps[fragment] = map_
        self.taking[fragment].pop(0)

    def lost(self, key: MemberKey, message: Handback) -> None:
        """A state that was asked for cannot be had, or made no sense: what was there before holds."""
        self._has_ended(message)
        taking = self.taking.get(message.fragment, [])
        place = next((n for n, (under_way, _) in enumerate(taking) if under_way == message), None)
        if place is not None:
            _, before = taking.pop(place)
            if place < len(taking):  # a newer one comes after it, on top of what was before both
                taking[place] = (taking[place][0], before)
            else:
                self.best[message.fragment] = before
        self.pending.pop((key, message.fragment), None)

    def over(self, now: float) -> bool:
        """Whether the wait is over, nothing newer is still under way (for so long), and Theta and map agree."""
        return now >= self._over_at()

    def due_at(self) -> float:
        """When to look again, as things are: the wait is over, or somebody counts as dead."""
        return min([self._over_at(), *(self._silent_at(key) for key, _ in self.pending)])

    def _over_at(self) -> float:
        """When the wait is over as things are; infinity while a state goes into Theta, which ends with an event."""
        if any(self.taking.values()):
            return math.inf
        newer = any(stamp > self.best[fragment] for (_, fragment), stamp in self.pending.items())
        return self.ends_at + PENDING_GRACE_S if newer else self.ends_at

    def next_epoch(self, ident: int) -> Epoch:
        """An epoch above everything that was ever seen."""
        return Epoch(max(self.highest, NO_EPOCH).counter + 1, ident)


PENDING_GRACE_S = 60.0
"""How much longer than `recover_wait_s` a state that is on its way from the fleet is waited for."""
