"""The bodies that one process has on offer or waits for, whichever way they travel."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from zdiloco.core.messages import Body, Loan, Update
from zdiloco.core.syncer_words import Fetchable
from zdiloco.sim.work import Parcel
from zdiloco.units import MemberKey
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Inbox
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Chunk

MOST_STATES = 8
"""So many published states of a fragment stay on offer, of each kind."""


@dataclass
class Depot:
    """What a process offers, by name, and what it waits for, by sender and name."""

    params: InboxParams
    offered: dict[str, Parcel] = field(default_factory=dict)
    bodies: dict[str, Body] = field(default_factory=dict)
    newest: dict[str, deque[str]] = field(default_factory=dict)
    wanted: dict[tuple[MemberKey, str], Fetchable | Update | Loan] = field(default_factory=dict)
    early: "OrderedDict[tuple[MemberKey, str], list[tuple[Chunk, memoryview]]]" = field(default_factory=OrderedDict)
    due: float = float("inf")

    def __post_init__(self) -> None:
        self.outbox = Outbox()
        self.inbox = Inbox(self.params)

    def hold(self, name: str, parcel: Parcel, body: Body) -> None:
        """Have a parcel on offer; of the published states of a fragment only the newest stay."""
        self.offered[name], self.bodies[name] = parcel, body
        kind, fragment, *state = name.split("/")
        if len(state) == 2:
            queue = self.newest.setdefault(f"{kind}/{fragment}", deque())
            queue.append(name)
            if len(queue) > MOST_STATES:
                self.drop(queue.popleft())

    def drop(self, name: str) -> None:
        """It is on offer no more."""
        self.offered.pop(name, None)
        self.bodies.pop(name, None)
        self.outbox.drop(name)
