"""What a training loop may know of the beginning of its learner: what was found of former processes, and how long each
phase took."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from zdiloco.node.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """What a learner process began from. Steps are those of all processes of this name together.

    `step`: made before this process; `saved_step`: made before the state was saved that it goes on from, 0 where there
    is none; `restored`: the parts that have their state back. `seconds`: by phase, since this process made its learner;
    phases that are still to come are not in it.
    """

    step: int
    saved_step: int
    restored: tuple[str, ...]
    seconds: Mapping[str, float]

    @property
    def steps_since(self) -> int:
        """Steps that were made after the state was saved, before this process: whoever walks data with it skips so
        many batches, and none is read twice but the one in which a process died."""
        return self.step - self.saved_step


class Phases:
    """When what happened for the first time, in seconds since this was made; any thread may `mark`."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name, self._clock, self._began = name, clock, clock()
        self._seconds: dict[str, float] = {}

    def mark(self, phase: str) -> None:
        """This has happened now; only the first time counts."""
        if phase not in self._seconds:
            seconds = self._clock() - self._began
            self._seconds[phase] = seconds
            log.info("%s: %s after_s=%.3f", self._name, phase, seconds)

    def seconds(self) -> Mapping[str, float]:
        """What was marked so far."""
        return MappingProxyType(dict(self._seconds))
