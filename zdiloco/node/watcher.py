"""A process that only watches: it joins like a learner and follows what is published, but trains nothing.

Rule: it has no say in the run and leaves nothing in its folder. Values change only inside `turn`, on the thread that
calls it, so between two turns the model holds, of every fragment, one whole published state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from zdiloco.core import machine as m
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.ledger import FragmentRow
from zdiloco.errors import MachineError
from zdiloco.node.hooks import Hooks
from zdiloco.node.learner import LearnerNode
from zdiloco.node.lifetime import Lifetime
from zdiloco.node.params import Settings
from zdiloco.rundir.counters import CounterFile
from zdiloco.units import MemberKey


class NoCounters(CounterFile):
    """Counts nothing, on no disk: who trains nothing has no place in the ledger."""

    def __init__(
        self, run_dir: Path, key: MemberKey, fragments: int, *, base: int = 0, required: bool = True
    ) -> None:  # fmt: skip
        """Make nothing."""

    def write(self, step: int, trained_tokens: int, rows: Sequence[FragmentRow], *, left: bool = False) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Let go of nothing."""


class NoLifetime(Lifetime):
    """Nothing is kept of who trains nothing, and nothing comes back."""

    def _read(self) -> None:
        """Look at nothing."""

    def now_restore(self, run_id: str) -> None:
        """Restore nothing, and save nothing from here on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What the model of a watcher holds: a version of each fragment, and the share-weighted tokens merged into them.

    `progress`: of the whole run, as its syncer last told; it may be ahead of what the model holds.
    """

    epoch: int
    versions: tuple[int, ...]
    merged_tokens: float
    progress: float


class WatcherNode(LearnerNode):
    """One process that watches. The constructor returns when the model holds the run's published values, or when the
    run is over (then `finished`, and `holds_values` says which).

    Raises what a learner's constructor raises.
    """

    watching = True
    counting = NoCounters
    living = NoLifetime

    def __init__(self, model: nn.Module, settings: Settings, *, name: str, hooks: Hooks | None = None) -> None:
        super().__init__(model, torch.optim.SGD(model.parameters()), settings, name=name, hooks=hooks)

    def step(self, tokens: int) -> None:
        """Raises MachineError: who watches does not train."""
        raise MachineError("a process that watches makes no steps")

    def turn(self, wait_s: float) -> None:
        """Wait for something to happen, at most `wait_s`, and put what was published into the model.

        Raises MachineError where a thread of this node has died.
        """
        self._raise_failure()
        self._poke.wait(wait_s)
        self._poke.clear()
        self._boundary(m.Boundary())

    @property
    def over(self) -> bool:
        """Whether nothing will be put into the model any more: the run is over, and what was on its way is there.

        Raises MachineError where it is over because a thread of this node has died.
        """
        self._raise_failure()
        return self._over.is_set()

    @property
    def holds_values(self) -> bool:
        """Whether the model holds published values of every fragment, all of one epoch."""
        return self.machine.ready and len({duty.progress.seen.epoch for duty in self.machine.duties}) == 1

    @property
    def outlived(self) -> bool:
        """Whether the run has reached its target and its syncer has gone since, without a farewell that was heard.

        The target is known from beats, or from the settings of this process.
        """
        if self.machine.phase is not LearnerPhase.ADRIFT:
            return False
        target = self.settings.run.target_tokens
        return self.progress >= 1.0 or 0 < target <= self.view().merged_tokens

    def view(self) -> View:
        """Say what the model holds now."""
        with self._lock:
            seen = [duty.progress.seen for duty in self.machine.duties]
            merged = [sum(entry.tokens for entry in duty.map.values()) for duty in self.machine.duties]
        shares = self.layout.shares
        return View(
            epoch=max(stamp.epoch for stamp in seen).counter,
            versions=tuple(stamp.version for stamp in seen),
            merged_tokens=sum(share * tokens for share, tokens in zip(shares, merged, strict=True)),
            progress=self.progress,
        )
