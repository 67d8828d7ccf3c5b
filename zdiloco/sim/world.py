"""A world: one or two syncers, any number of learners, and their links, in virtual time.

Steps go on whatever happens: a learner's loop never waits. Faults are done to it from outside (`faults.py`), and what
must hold is looked at from outside (`audit.py`).
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

from zdiloco import trace
from zdiloco.agenda import Broken
from zdiloco.core import machine as m
from zdiloco.core.params import SyncParams
from zdiloco.sim.actors import Actor, Process, Running, Site
from zdiloco.sim.bodies import SyncerDisk
from zdiloco.sim.chunks import CHUNKED, ChunkedFreight
from zdiloco.sim.freight import WholeFreight
from zdiloco.sim.learner_side import TOKENS, LearnerSide
from zdiloco.sim.links import Trunk
from zdiloco.sim.relay_places import Relay
from zdiloco.sim.relays import Relays


class World(LearnerSide):
    """A world with one syncer running. `exact`: work is followed by ids (else by counters only, for large fleets);
    `chunked`: bodies travel through the production's transfers (else whole). Further arguments go to the syncers.
    """

    def __init__(
        self, params: SyncParams, num_fragments: int, seed: int = 0, *, exact: bool = True, chunked: bool = False,
        on_record: Callable[[trace.Record], None] | None = None, **syncer: Any,
    ) -> None:  # fmt: skip
        super().__init__(params, num_fragments, seed, exact, syncer)
        self.on_record = on_record
        self.inbox_params = CHUNKED
        self.relays = Relays(self)
        self.freight = ChunkedFreight(self) if chunked else WholeFreight(self)
        self.start_syncer(SyncerDisk())

    def trunk(self, name: str, up_bytes_s: float = math.inf, down_bytes_s: float = math.inf) -> Trunk:
        """The trunk of a region, made when it is first named."""
        return self.trunks.setdefault(name, Trunk(name, up_bytes_s, down_bytes_s))

    def resume(self, process: Running) -> None:
        """SIGCONT: what waits is heard, then deadlines are judged, then the step that was under way ends."""
        if not process.stopped or not process.alive:
            return
        if not isinstance(process, Relay):
            self.record(trace.Continued(t=self.now, who=self.name_of(process)))
        super().resume(process)
        if isinstance(process, Relay):
            self.relays.pump(process)
        elif isinstance(process, Process):
            self._goes_on(process)

    def _goes_on(self, process: Process) -> None:
        """A syncer or a learner has heard what waited."""
        if process.alive and process.missed:
            process.missed = False
            if isinstance(process, Site):
                self.tell_syncer(process, m.TimerDue())
            elif isinstance(process, Actor):
                self.tell(process, m.TimerDue())
        self.freight.pump(process)
        if isinstance(process, Actor) and process.alive and process.step_waits:
            process.step_waits = False
            self.step_ends(process, process.step_s)

    def stop(self, process: Running) -> None:
        """SIGSTOP: it lives and does nothing, and what comes for it waits."""
        super().stop(process)
        if not isinstance(process, Relay):  # a trace knows learners and the syncer
            self.record(trace.Stopped(t=self.now, who=self.name_of(process)))

    def name_of(self, process: Running) -> str:
        """What records call a process."""
        return process.key.name if isinstance(process, Actor) else trace.SYNCER

    def take_over(self, followers: list[Actor]) -> Site:
        """A successor starts from what the syncer has made durable, while that lives on with all but the followers."""
        old = self.site
        assert old is not None
        self.site = None
        new = self.start_syncer(old.disk.copy())
        for actor in followers:
            self.relays.follow(actor, new)
        return new

    def finish(self) -> None:
        """The records end here, whatever happens after."""
        self.record(trace.End(t=self.now, reason="the story is over"))
        self.on_record = None

    # ---- what tests ask

    def audit(self) -> None:
        """Every living learner's counters say what its values hold, and balance. Raises: Broken."""
        for actor in self.actors.values():
            audit_learner(actor, self.exact)

    def gaps(self, step_s: float, after_s: float) -> list[float]:
        """Inner steps between two calls of the same fragment, for calls after a moment."""
        by_fragment: dict[int, list[float]] = {}
        for at, fragment, _ in self.calls:
            by_fragment.setdefault(fragment, []).append(at)
        pairs = [pair for times in by_fragment.values() for pair in itertools.pairwise(times)]
        return [(late - early) / step_s for early, late in pairs if early >= after_s]


def audit_learner(actor: Actor, exact: bool) -> None:
    """A learner's counters balance, without a term that is a remainder, and say what its values hold."""
    for duty in actor.machine.duties:
        progress, tally = duty.progress, duty.progress.tally
        if exact and progress.tokens != TOKENS * actor.body.progress(duty.index).bit_count():
            raise Broken("counters", f"{actor.key.name} counts {progress.tokens} tokens in fragment {duty.index}")
        if tally.trained != tally.merged + progress.tokens + tally.dropped + tally.lost:
            raise Broken("ledger", f"{actor.key.name}, fragment {duty.index}: {tally}, {progress.tokens} unmerged")
