"""The processes of a world: syncers with their disks, learners with their links, and what the dead have left."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from zdiloco.core.learner import LearnerMachine
from zdiloco.core.ledger import FragmentRow
from zdiloco.core.syncer import SyncerMachine
from zdiloco.scribe import Scribe
from zdiloco.sim.bodies import LearnerBody, SyncerBody, SyncerDisk
from zdiloco.sim.depot import Depot
from zdiloco.sim.links import Link
from zdiloco.sim.speeds import Speed
from zdiloco.units import MemberKey
from zdiloco.wire.meter import LinkMeter
from zdiloco.wire.pulls import Pulls

MOST_WAITING = 4_000
"""Words and chunks that wait for a stopped process; beyond that they are lost, as at a full queue."""


@dataclass(kw_only=True)
class Running:
    """What runs; while it is `stopped` (SIGSTOP) everything that comes for it waits."""

    alive: bool = True
    stopped: bool = False
    due: float = math.inf
    missed: bool = False
    waiting: deque[Callable[[], None]] = field(default_factory=deque)


@dataclass(kw_only=True)
class Process(Running):
    """One that has bodies on offer, and waits for bodies."""

    depot: Depot


@dataclass(kw_only=True)
class Site(Process):
    """One syncer process. `scribe`: follows its machine where a trace is kept; `looks`: it will, at its pulls."""

    number: int
    machine: SyncerMachine
    body: SyncerBody
    disk: SyncerDisk
    scribe: Scribe = field(default_factory=Scribe)
    pulls: Pulls[MemberKey] = field(default_factory=Pulls)
    looks: bool = False


@dataclass(kw_only=True)
class Actor(Process):
    """One learner process. `site`: the syncer that its messages reach, if it lives; `work`, `own`: steps of this
    incarnation, and their ids.
    """

    key: MemberKey
    machine: LearnerMachine
    body: LearnerBody
    link: Link
    speed: Speed
    site: Site | None
    training: bool = False
    listening: bool = False
    step_waits: bool = False
    offers: int = 0
    lent: str = ""
    steps: int = 0
    work: int = 0
    own: int = 0
    work_at: dict[int, float] = field(default_factory=dict)
    sending: set[str] = field(default_factory=set)
    meter: LinkMeter = field(default_factory=LinkMeter)

    @property
    def step_s(self) -> float:
        """Seconds of one inner step, undisturbed."""
        return self.speed.step_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallen:
    """An incarnation that has ended: its last record per fragment. `state`: 'dead', or 'left' in order."""

    key: MemberKey
    state: str
    work: int
    rows: tuple[FragmentRow, ...]
    own: int
    held: tuple[int, ...]
    """Per fragment the ids that it dropped, or that went down with it: unmerged, or merged and kept until stable."""
