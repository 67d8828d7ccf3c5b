"""A fleet in virtual time that keeps a trace, as a real syncer keeps its journal."""

import dataclasses
from typing import Any

from tests.core.fleet import Site, World
from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.scribe import Scribe


class RecordedWorld(World):
    """`told`: the trace so far. Each syncer process has a scribe of its own."""

    def __init__(self, params: SyncParams, num_fragments: int, seed: int = 0, **syncer: Any) -> None:
        self.told: list[trace.Record] = []
        self.scribes: dict[int, Scribe] = {}
        super().__init__(params, num_fragments, seed, **syncer)

    def start_syncer(self, disk: Any) -> Site:
        start = trace.Start(t=self.now, wall=1e9 + self.now, run_id="run", sync=dataclasses.asdict(self.params))
        self.told.append(start)
        return super().start_syncer(disk)

    def tell_syncer(self, site: Site | None, event: Any) -> None:
        if site is None or not site.alive:
            return
        actions = site.machine.handle(event, self.now)
        scribe = self.scribes.setdefault(id(site), Scribe())
        self.told += scribe.look(self.now, event, actions, site.machine)
        for action in actions:
            self.do_syncer(site, action)
        self.syncer_timer(site)

    def of(self, kind: type) -> list[Any]:
        """The records of one kind."""
        return [record for record in self.told if isinstance(record, kind)]
