"""A world that keeps its trace: the same kinds of records as a real syncer's journal, and those that only we know."""

from typing import Any

from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.sim.world import World


class RecordedWorld(World):
    """`told`: the trace so far."""

    def __init__(self, params: SyncParams, num_fragments: int, seed: int = 0, **more: Any) -> None:
        self.told: list[trace.Record] = []
        super().__init__(params, num_fragments, seed, on_record=self.told.append, **more)

    def of(self, kind: type) -> list[Any]:
        """The records of one kind."""
        return [record for record in self.told if isinstance(record, kind)]
