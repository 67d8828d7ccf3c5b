"""What both sides of a world stand on: time, chance, processes, the roads of words, and records of what happens.

Rule: every word goes through the production encoder and decoder, on every road. Whatever comes for a process comes
through `into`, so that a dead one hears nothing and a stopped one hears it later.
"""

import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zdiloco import trace
from zdiloco.agenda import Agenda
from zdiloco.core.messages import Message
from zdiloco.core.params import SyncParams
from zdiloco.sim.actors import MOST_WAITING, Actor, Fallen, Running, Site
from zdiloco.sim.bodies import State
from zdiloco.sim.links import MOST_HELD, Passage, Road, Trunk
from zdiloco.sim.work import Parcel
from zdiloco.units import MemberKey, Stamp
from zdiloco.wire.encoding import WireMessage, decode, encode

MOST_PUBLISHED = 64
"""Published bodies that are remembered in a world that is not exact."""


class Stage(Agenda, ABC):
    """The ground of a world. `lose`: whether a rule of the test has this word or body lost, by road."""

    def __init__(self, params: SyncParams, num_fragments: int, seed: int, exact: bool) -> None:
        super().__init__()
        self.params, self.num_fragments, self.exact = params, num_fragments, exact
        self.seed, self.rng = seed, random.Random(seed)
        self.actors: dict[MemberKey, Actor] = {}
        self.everybody: list[Actor] = []
        self.known: set[str] = set()
        self.fallen: list[Fallen] = []
        self.sites: list[Site] = []
        self.site: Site | None = None
        self.trunks: dict[str, Trunk] = {}
        self.lose: Callable[[str, Any], bool] = lambda road, message: False
        self.next_work = 1
        self.published: dict[str, Parcel] = {}
        self.history: dict[tuple[int, Stamp], State] = {}
        self.lent: dict[tuple[int, int, Stamp], set[int]] = {}
        """What was copied to be lent, by loan, fragment and stamp: two syncers may use one number."""
        self.returned: dict[tuple[MemberKey, int, Stamp], State] = {}
        self.calls: list[tuple[float, int, int]] = []
        self.merged_at: dict[tuple[int, int], float] = {}
        self.notes: list[str] = []
        self.stops: list[str] = []
        self.seen: Counter[str] = Counter()
        self.on_record: Callable[[trace.Record], None] | None = None
        self.on_event: Callable[[Running], None] | None = None
        self.record_steps = self.record_events = False
        self.save_s = 0.01

    # ---- records

    def record(self, record: trace.Record) -> None:
        """Tell whoever listens what has happened."""
        if self.on_record is not None:
            self.on_record(record)

    def record_event(self, who: str, event: object, actions: Sequence[Any]) -> None:
        """The full trace: an event that a machine was told, what it asked for, and why."""
        message = getattr(event, "message", None)
        name = type(event).__name__ + (f" {type(message).__name__}" if message is not None else "")
        said = tuple([type(getattr(action, "message", action)).__name__ for action in actions])
        why = tuple([action.why for action in actions if hasattr(action, "why")])
        self.record(trace.Event(t=self.now, who=who, event=name, actions=said, why=why))

    def note(self, who: str, what: str, why: str) -> None:
        """A line that a machine wants in the log."""
        self.notes.append(f"{self.now:.3f} {who}: {what} ({why})")
        if not self.exact and len(self.notes) > 2_000:
            del self.notes[:1_000]

    # ---- processes

    def into(self, process: Running, what: Callable[[], None]) -> None:
        """Something comes for a process: now, or when it goes on; never, if it is dead."""
        if not process.alive:
            return
        if not process.stopped:
            what()
        elif len(process.waiting) < MOST_WAITING:
            process.waiting.append(what)

    def later(self, process: Running, delay_s: float, what: Callable[[], None]) -> None:
        """Something comes for a process in so many seconds."""
        self.at(delay_s, partial(self.into, process, what))

    def arm(self, process: Running, due: float | None, timer: Callable[[], None]) -> None:
        """Keep one timer at a process's deadline; a later event may bring a sooner one."""
        if due is None or due >= process.due or not process.alive:
            return
        process.due = due
        self.at(due - self.now, partial(self._fire, process, due, timer))

    def _fire(self, process: Running, due: float, timer: Callable[[], None]) -> None:
        if process.due != due or not process.alive:
            return
        process.due = math.inf
        if process.stopped:
            process.missed = True
        else:
            timer()

    def stop(self, process: Running) -> None:
        """SIGSTOP: it lives and does nothing."""
        process.stopped = True

    def resume(self, process: Running) -> None:
        """SIGCONT: all that waits is heard before any deadline is judged."""
        process.stopped = False
        while process.waiting and process.alive and not process.stopped:
            process.waiting.popleft()()

    # ---- roads

    def carry(self, message: WireMessage) -> tuple[Any, int]:
        """A word as it comes out at the other end of the wire, and its length in bytes."""
        data = encode(message)
        return decode(data), len(data)

    def send(self, road: Road, nbytes: int, cut: bool, what: Callable[[], None]) -> None:
        """A word goes out on a road; what arrives, arrives in order."""
        if cut or road.passage is Passage.CUT or road.is_lost(self.rng):
            return
        if road.passage is Passage.HELD:
            if len(road.held) < MOST_HELD:
                road.held.append(what)
            return
        self.at(road.word(nbytes, self.now, self.rng) - self.now, what)

    def open_road(self, road: Road) -> None:
        """A road is open again: what it held back arrives."""
        road.passage = Passage.OPEN
        held, road.held = road.held, []
        for what in held:
            self.at(road.crosses_s(self.rng), what)

    # ---- what the sides say to each other

    @abstractmethod
    def tell(self, actor: Actor, event: Any) -> None:
        """A learner's machine is told an event."""

    @abstractmethod
    def tell_syncer(self, site: Site | None, event: Any) -> None:
        """A syncer's machine is told an event."""

    @abstractmethod
    def up(self, actor: Actor, message: Message) -> None:
        """A learner says something to its syncer."""

    @abstractmethod
    def down(self, site: Site, key: MemberKey, message: Message, road: str) -> None:
        """A syncer says something to a learner."""
