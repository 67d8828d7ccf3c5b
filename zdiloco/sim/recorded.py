"""A world that keeps a trace, as a real syncer keeps its journal: one format for runs of both kinds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from zdiloco import trace
from zdiloco.core.machine import SyncerAction, SyncerEvent
from zdiloco.core.params import SyncParams
from zdiloco.scribe import Scribe
from zdiloco.sim.actors import Site
from zdiloco.sim.bodies import SyncerDisk
from zdiloco.sim.world import World


class RecordedWorld(World):
    """`told`: the trace so far. Each syncer process has a scribe of its own."""

    def __init__(self, params: SyncParams, num_fragments: int, seed: int = 0, **more: Any) -> None:
        self.told: list[trace.Record] = []
        self.scribes: dict[int, Scribe] = {}
        super().__init__(params, num_fragments, seed, **more)

    def start_syncer(self, disk: SyncerDisk) -> Site:
        """The same; the trace says that a process begins, and under which settings."""
        self.told.append(trace.Start(t=self.now, wall=self.now, run_id="run", sync=dataclasses.asdict(self.params)))
        return super().start_syncer(disk)

    def look(self, site: Site, event: SyncerEvent, actions: Sequence[SyncerAction]) -> None:
        """Write down what a syncer was told and asks for."""
        scribe = self.scribes.setdefault(site.number, Scribe())
        self.told += scribe.look(self.now, event, actions, site.machine)

    def of(self, kind: type) -> list[Any]:
        """The records of one kind."""
        return [record for record in self.told if isinstance(record, kind)]
