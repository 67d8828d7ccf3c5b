"""What a training loop may look at in its learner.

Rule: nothing here waits or changes anything.
"""

import threading

from zdiloco.core import machine as m
from zdiloco.core.learner import LearnerMachine
from zdiloco.node.lifetime import Lifetime
from zdiloco.node.resumed import Resumed
from zdiloco.node.roads import Roads
from zdiloco.units import MemberKey


class LearnerView:
    """The readable side of `LearnerNode`."""

    machine: LearnerMachine
    _lock: threading.Lock
    _roads: Roads
    _finish: m.Finish | None
    _stopped: m.Stop | None
    _lifetime: Lifetime

    @property
    def finished(self) -> bool:
        """Whether training is over, for whatever `reason`: leave the loop."""
        return self._finish is not None

    @property
    def reached_target(self) -> bool:
        """Whether it is over because the run has reached its target, and the model holds the run's last values."""
        return self._finish is not None and self._finish.finished

    @property
    def reason(self) -> str:
        """Why training is over; empty while it is not."""
        return self._finish.reason if self._finish else ""

    @property
    def exit_code(self) -> int:
        """What the process should end with; above 0, the run goes on without this learner."""
        with self._lock:  # `finished` and this are decided in one go
            return self._stopped.exit_code if self._stopped else 0

    @property
    def progress(self) -> float:
        """Merged tokens of the whole run ÷ its target, never falling; 0.0 where there is no target."""
        return self.machine.global_progress

    @property
    def steps_since_join(self) -> int:
        """Inner steps since this process has last loaded the published values."""
        return self.machine.steps_since_join

    @property
    def key(self) -> MemberKey:
        """Name and incarnation of this process."""
        return self.machine.key

    @property
    def resumed(self) -> Resumed:
        """What this process has begun from: steps made before, the parts that are back, and its phases so far."""
        return self._lifetime.resumed

    @property
    def counts(self) -> dict[str, int]:
        """How often what has happened to this process's contributions and updates: 'cut', 'refused: norm' and so on."""
        return dict(self.machine.counts)  # copied in one go, whatever other threads do

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, all roads together, broadcasts included."""
        counts = self._roads.of(m.SYNCER)
        return counts.bytes_up, counts.bytes_down
