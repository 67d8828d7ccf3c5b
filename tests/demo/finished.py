"""A finished demo in a folder, small and made by hand: two rounds, a kill and a return, and books that balance."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from zdiloco.config import from_tree
from zdiloco.core.ledger import FragmentRow
from zdiloco.demo.learner_log import LearnerLog, StepNote, log_path
from zdiloco.demo.story import Plot, Story
from zdiloco.rundir.archive import Cut, FragmentCut
from zdiloco.rundir.counters import CounterFile
from zdiloco.rundir.store import Store
from zdiloco.tensor.layout import Layout, layout_of
from zdiloco.units import Epoch, MemberKey, Merged, Stamp

KEYS = {"a": MemberKey("a", 10), "b": MemberKey("b", 11), "b2": MemberKey("b", 12), "c": MemberKey("c", 13)}
TOKENS = 10
"""Of one step."""
STEPS = {"a": 20, "b": 6, "b2": 5, "c": 8}
MERGED = {"a": 180, "b": 40, "b2": 30, "c": 80}
JOINED_AT = {"a": 100.0, "b": 100.0, "b2": 130.0, "c": 100.0}
KILLED_AT, RETURNED_AT, ENDED_AT = 120.0, 125.0, 150.0


class Finished:
    """The folder and the story of a finished demo, and the rounds that its journal would hold."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        self.layout: Layout = layout_of(self.model, num_fragments=2)
        self.story = Story(
            run_dir=run_dir,
            config=from_tree({"run": {"dir": str(run_dir)}}),
            plot=Plot(),
            began_at=95.0,
            training_at=101.0,
            killed_at=KILLED_AT,
            returned_at=RETURNED_AT,
            ended_at=ENDED_AT,
        )
        self.rounds: list[dict[str, Any]] = []
        for index in range(2):
            self.rounds += [self._round(110.0, index, ("a", "b")), self._round(140.0, index, ("a", "b2", "c"))]
        for name in KEYS:
            self._count(name)
        self._save()

    def _round(self, moment: float, fragment: int, who: tuple[str, ...]) -> dict[str, Any]:
        """All of everybody's merged tokens in one round, save of a, which takes part in both."""
        members = []
        for name in who:
            tokens = MERGED[name] // (2 if name == "a" else 1)
            members.append([KEYS[name].name, f"{KEYS[name].incarnation:016x}", tokens // TOKENS, tokens])
        return {"kind": "merge", "t": moment, "fragment": fragment, "members": members}

    def _count(self, name: str) -> None:
        key, trained = KEYS[name], STEPS[name] * TOKENS
        row = FragmentRow(unmerged=trained - MERGED[name], dropped=0, lost=0, after=1)
        counters = CounterFile(self.run_dir, key, 2)
        counters.write(STEPS[name], trained, (row, row), left=name != "b")
        counters.close()
        now = [JOINED_AT[name]]
        facts = {"name": key.name, "incarnation": f"{key.incarnation:016x}", "shard": 0}
        with LearnerLog(log_path(self.run_dir, key), facts, clock=lambda: now[0]) as log:
            for _ in range(STEPS[name]):
                now[0] += 1
                note = StepNote(loss=2.0, tokens=TOKENS, step_s=1.0, call_s=0.01)
                log.step(note, lambda: {"progress": 0.5, "bytes_up": 1000, "bytes_down": 2000})

    def _save(self) -> None:
        stamp = Stamp(Epoch(1, 5), 2)
        map_ = tuple(Merged(*KEYS[name], 1, MERGED[name] // TOKENS, MERGED[name]) for name in KEYS)
        values = dict(self.model.named_parameters())
        parts = tuple(
            FragmentCut(
                fragment=fragment.index,
                revision=1,
                stamp=stamp,
                theta=torch.cat([values[tensor.name].detach().reshape(-1) for tensor in fragment.tensors]),
                buf=None,
                value=torch.zeros(2 * fragment.numel, dtype=torch.uint8),
                codec="bf16",
                map_=map_,
            )
            for fragment in self.layout.fragments
        )
        layout = self.layout.to_obj()
        cut = Cut(run_id="r", epoch=stamp.epoch, layout_digest=self.layout.digest, layout=layout, fragments=parts)
        store = Store(self.run_dir, keep=2)
        store.write(cut)
        store.close()
