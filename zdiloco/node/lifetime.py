"""What outlives a learner's process: the count of its steps, its saved state, and what a new process makes of them.

Rule: what is found is judged before a socket is opened; the parts get their state back when the model holds published
values, before the first step. Methods named `now_*` are the training thread's.
"""

import logging
from collections.abc import Callable

from zdiloco.core.learner import LearnerMachine
from zdiloco.core.messages import Ack, Message, Welcome
from zdiloco.errors import ConfigError, StoreError
from zdiloco.node.clock import Clock
from zdiloco.node.params import Settings
from zdiloco.node.parts import Parts
from zdiloco.node.resumed import Phases, Resumed
from zdiloco.node.saver import Saver
from zdiloco.rundir.counters import lifetime_steps
from zdiloco.rundir.saved import About, Saved, SavedStates

log = logging.getLogger(__name__)


class Lifetime:
    """The learner `name` over all its processes. `base`: its steps before the present incarnation.

    Raises ConfigError for a saved state that is not this learner's, or where there are some and none is whole.
    """

    def __init__(
        self, settings: Settings, name: str, parts: Parts, *, clock: Clock, on_failure: Callable[[BaseException], None]
    ) -> None:  # fmt: skip
        self.phases = Phases(name, clock)
        self._settings, self._name, self._parts = settings, name, parts
        self._warm = settings.learner.warm_start != "none"
        self._run_id = ""
        self.base = self._step = 0
        self._restored: tuple[str, ...] = ()
        self._states = SavedStates(settings.run.path, name)
        self._saved = self._read()
        self._saved_step = self._saved.about.step if self._saved else 0
        self.base = self._began_at = max(lifetime_steps(settings.run.path, name), self._saved_step)
        self.phases.mark("state read")
        self._clock, self._on_failure = clock, on_failure
        self._saver: Saver | None = None

    def _read(self) -> Saved | None:
        try:
            saved = self._states.read()
        except StoreError as error:
            why = f"{self._name} cannot go on from its saved state: {error}; remove it to start over"
            raise ConfigError(why) from error
        if saved is not None:
            self._parts.check(saved, self._about(), warm=self._warm)
        return saved

    def _about(self) -> About:
        return self._parts.about(self._name, self._settings.run.name, self._run_id, self.base + self._step)

    @property
    def resumed(self) -> Resumed:
        """What this process has begun from, so far."""
        return Resumed(
            step=self._began_at, saved_step=self._saved_step, restored=self._restored, seconds=self.phases.seconds()
        )

    def heard(self, message: Message) -> None:
        """The syncer says something; network thread."""
        self.phases.mark("connected")
        if isinstance(message, Welcome):
            self.phases.mark("welcomed")
        elif isinstance(message, Ack) and (message.held or message.merged):
            self.phases.mark("first contribution sent")

    def now_restore(self, run_id: str) -> None:
        """The model holds the values of this run: give the parts their saved state, if there is one. From here on the
        state is saved.

        Raises ConfigError where it is of another run, or a part does not take it.
        """
        self._run_id, saved, self._saved = run_id, self._saved, None
        if saved is not None:
            self._restore(saved, run_id)
        self._saver = Saver(
            self._states, self._parts, self._about, every_s=self._settings.learner.save_every_s, clock=self._clock,
            on_failure=self._on_failure,
        )  # fmt: skip

    def _restore(self, saved: Saved, run_id: str) -> None:
        if saved.about.run_id != run_id:
            other = f"{saved.path} is of run {saved.about.run_id}, but the syncer's is {run_id}"
            raise ConfigError(f"{other}: remove it to start over, or take another run.dir")
        self._restored = self._parts.restore(saved, warm=self._warm)
        self.phases.mark("inner state restored")
        since = self.base - self._saved_step
        log.info("%s goes on step=%d since_saved=%d parts=%s", self._name, self.base, since, ",".join(self._restored))

    def now_step(self, machine: LearnerMachine, step_s: float) -> None:
        """A step is counted. Raises ConfigError naming what can never be saved."""
        self._step = machine.step
        self.phases.mark("first step")
        if any(duty.progress.after for duty in machine.duties):
            self.phases.mark("first contribution merged")
        if self._saver:
            self._saver.now_step(step_s)

    def now_start_over(self, steps: int) -> None:
        """The process goes on as another incarnation, after `steps` of the last one: with the inner state of the last
        finite save, or with none."""
        self.base, self._step = self.base + steps, 0
        if self._saver:
            self._saver.now_start_over()

    def now_leave(self, *, save: bool) -> None:
        """The loop is over: begin to save what is now, if there is anything new. Nothing changes until `close`."""
        if self._saver and save and self.base + self._step > self._began_at:
            self._saver.now_leave()

    def close(self, ends: float) -> None:
        """End the saver; what is not saved by `ends` (monotonic seconds) is given up."""
        if self._saver:
            self._saver.close(ends)
