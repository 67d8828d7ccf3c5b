"""The learner in the real world: the training thread's `step`, one network thread, one worker thread.

Rule: the machine is asked under one lock, on whichever thread something happens; what touches the model is done at
once, on the training thread, under that lock; everything else is queued in the machine's order, so no two threads ever
see two orders. `step` never waits for network, disk or worker. A thread that dies makes the next `step` raise.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import zmq
from torch import nn
from torch.optim import Optimizer

from zdiloco.core import machine as m
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.messages import Welcome
from zdiloco.core.solitude import GAVE_UP
from zdiloco.errors import LinkError, MachineError
from zdiloco.knobs import check_name
from zdiloco.node.dialler import Dialler
from zdiloco.node.difference import difference
from zdiloco.node.entrance import entrance_of
from zdiloco.node.hooks import Hooks
from zdiloco.node.learner_acts import LearnerActs, LearnerParts, error_of
from zdiloco.node.learner_body import LearnerBody, layout_for
from zdiloco.node.learner_loans import Inner
from zdiloco.node.learner_view import LearnerView
from zdiloco.node.lifetime import Lifetime
from zdiloco.node.loop import Loop
from zdiloco.node.params import Settings, whole_tokens
from zdiloco.node.parts import Parts, Stateful
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import check_library, new_incarnation
from zdiloco.node.transfers import Transfers
from zdiloco.node.wake import Wake
from zdiloco.node.worker import Worker
from zdiloco.rundir.counters import CounterFile
from zdiloco.rundir.last_values import leave_last
from zdiloco.tensor.binding import Binding
from zdiloco.units import RUN_NAME_CHARS, MemberKey

log = logging.getLogger(__name__)

LINGER_MS = 300
POKE_S = 0.05
"""Longest time between two boundaries while joining or leaving: the network thread's poke usually comes first."""
WAITING_NOTICE_S = 1.0
SAVE_S = 4.5
"""What is not saved so long after `close` was called stays as it was saved before."""
GATHER_S = 0.02
"""The network thread looks so often for what `step` has left it. Waking it from there would hand it the interpreter
lock in the middle of `step`: measured, 0.7 ms of pause a step, for words that are not urgent."""
SWITCH_S = 0.001
"""Longest hold of the interpreter lock when the training thread wants it; Python's own 5 ms would be felt in `step`."""


class LearnerNode(LearnerView):
    """One learner process. The constructor returns when the model holds the run's published values.

    Raises ConfigError (the model, a key, or another run than expected), LinkError (replaced, abandoned, or the run is
    gone), MachineError (our own failure).
    """

    watching = False
    counting: type[CounterFile] = CounterFile
    living: type[Lifetime] = Lifetime

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, settings: Settings, *, name: str, hooks: Hooks | None = None,
        stateful: Mapping[str, Stateful] | None = None,
    ) -> None:  # fmt: skip
        check_library()
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        check_name(name, "the learner's name")
        self.settings = settings
        self.layout = layout_for(model, settings.sync.num_fragments, settings.learner.strategy)
        self._hooks = hooks or Hooks()
        self._clock, self._tape = self._hooks.clock, self._hooks.tape
        self._lock = threading.Lock()
        self._net: deque[m.LearnerAction | MemberKey] = deque()  # a key: from here on under this identity
        self._poke, self._ready, self._over = (threading.Event() for _ in range(3))
        self._failure: BaseException | None = None
        self._finish: m.Finish | None = None
        self._stopped: m.Stop | None = None
        self._closed, self._hasty = False, False
        self._stepped_at: float | None = None
        key, layout = MemberKey(name, new_incarnation()), self.layout
        self.machine = LearnerMachine(
            key, settings.sync, settings.learner, shares=layout.shares, layout_digest=layout.digest,
            run_name=settings.run.name[:RUN_NAME_CHARS], watching=self.watching,
        )  # fmt: skip
        parts = Parts(model, optimizer, stateful or {})
        self._lifetime = self.living(settings, name, parts, clock=self._clock, on_failure=self._fail)
        self._counters = self.counting(settings.run.path, key, len(layout.fragments), base=self._lifetime.base)
        self._binding = Binding(model, self.layout)
        self._body = LearnerBody(self._binding, settings.learner.codec)
        self._inner_state = self._body.inner_of(optimizer)
        self.wake = Wake()
        self._worker = Worker("zdiloco-worker", self._fail)
        self._context: zmq.Context[Any] = zmq.Context()
        self._roads = Roads({}, server=False)
        try:
            self._open(key)
        except BaseException:
            self._worker.close(0.5)
            self._context.destroy(0)  # with every socket of it
            self.wake.close()
            self._counters.close()
            raise
        self._join()

    # ---- what the training loop sees

    def step(self, tokens: int) -> None:
        """Say that an inner step over `tokens` tokens is done; adopts and snapshots at this boundary, and returns.

        After the end it does nothing. Raises MachineError (a thread died), ConfigError (`tokens` that cannot be, or
        `requires_grad` has changed).
        """
        tokens = whole_tokens(tokens, self.settings.sync.max_step_tokens)
        self._raise_failure()
        if self._finish is not None or self._closed:
            return
        self._body.now_look()
        now = self._clock()
        seconds = now - self._stepped_at if self._stepped_at is not None else 0.0
        self._stepped_at = now
        self._boundary(m.StepDone(tokens=tokens, seconds=seconds))
        self._lifetime.now_step(self.machine, seconds)

    def close(self, reason: str = "the training loop has ended") -> None:
        """Leave in order: push what fits, say goodbye, end the threads; at most 5 s. Harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        while self._may_finish() and self._at_work():
            continue  # the last values are coming in: that has its own end
        ends, save_ends = (self._clock() + seconds for seconds in (self.settings.net.leave_s, SAVE_S))
        self._lifetime.now_leave(save=self._stopped is None or self._stopped.word != "replaced")
        if not self._over.is_set() and self._failure is None:
            self._feed(m.LeaveRequested(reason=reason))
            while self._at_work() and self._clock() < ends:
                continue
            if not self._over.is_set() and self._failure is None:
                self._feed(m.LeaveRequested(reason=reason))  # the second time: now
        self.wake.post(lambda: self._loop.stop(0.5))
        self._thread.join(2.0)
        self._worker.close(0.5)
        self._lifetime.close(save_ends)
        if self._stopped is not None and self._stopped.word == GAVE_UP and self.machine.ready:
            leave_last(self.settings.run.path, self.key.name, self._binding)
        with self._lock:
            machine = self.machine
            self._counters.write(machine.step, machine.trained_tokens, machine.ledger_rows(), left=True)
            self._counters.close()
        if not self._thread.is_alive():
            self.wake.close()

    def _may_finish(self) -> bool:
        """Whether the last values are coming in, and nobody is in haste."""
        hasty = self._hasty or self._hooks.abandon()
        return self.machine.phase is LearnerPhase.FINISHING and not hasty

    def _at_work(self) -> bool:
        """A boundary, then a moment's rest: for whoever waits on the training thread. False: the machine is over."""
        if self._over.is_set() or self._failure is not None:
            return False
        self._boundary(m.Boundary())
        self._poke.wait(POKE_S)
        self._poke.clear()
        return True

    def __enter__(self) -> "LearnerNode":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; then, unless an exception is under way, raise LinkError or ConfigError where this learner was stopped
        against its will, so that nobody takes what it has for the run's result."""
        self._hasty = kind is not None
        self.close()
        error = error_of(self._stopped)
        if error is not None and kind is None:
            raise error

    # ---- opening

    def _open(self, key: MemberKey) -> None:
        net, largest = self.settings.net, 4 * max(self.layout.numels)
        self._dialler = Dialler(self._roads, self._context, entrance_of(net, key.name), largest)
        self._dialler.dial(key)
        self._loop = Loop(self._roads, self.wake, self._clock, self._hooks.service)
        params = net.inbox(net.receive_bytes)
        self._transfers = Transfers(
            self._roads, params, lambda *at: self._acts.arrived(*at), lambda *at: self._acts.lost(*at), keeps_early=True
        )
        parts = LearnerParts(
            name=key.name, settings=self.settings, clock=self._clock, wake=self.wake, roads=self._roads,
            transfers=self._transfers, body=self._body, inner_state=self._inner_state, worker=self._worker,
            dialler=self._dialler, feed=self._feed, stop=self._stop,
        )  # fmt: skip
        self._acts = LearnerActs(parts)
        self._transfers.on_credit, self._transfers.on_refused = self._acts.credited, self._acts.refused
        self._thread = threading.Thread(target=self._run, name="zdiloco-network", daemon=True)
        self._thread.start()

    def _join(self) -> None:
        """Wait until every fragment holds published values; leave if that fails."""
        try:
            self._wait_to_join()
            if self._ready.is_set():  # else the run was over first: there is nothing to go on with
                self._lifetime.now_restore(self.machine.run_id)
                self._acts.loans.now_begin()
        except BaseException:
            self.close()
            raise

    def _wait_to_join(self) -> None:
        """The wait itself; says once whom for."""
        began, told = self._clock(), False
        self.wake.post(lambda: self._feed(m.Started()))
        while not self._ready.is_set() and self._finish is None:
            self._raise_failure()
            self._roads.check_version()
            if self._hooks.abandon():
                raise LinkError(f"{self.key.name} has not joined: the waiting was ended")
            self._boundary(m.Boundary())
            self._poke.wait(POKE_S)
            self._poke.clear()
            if not told and self._clock() - began > WAITING_NOTICE_S:
                told, net = True, self.settings.net
                log.warning("%s waits for the syncer at %s:%d", self.key.name, net.connect, net.port)
        error = error_of(self._stopped, lambda: difference(self.settings.net, self.layout, self.key.name))
        if error is not None:
            raise error

    # ---- the machine, on any thread

    def _boundary(self, event: m.StepDone | m.Boundary) -> None:
        """Ask the machine at a boundary, and touch the model as it says; training thread only."""
        with self._lock, self._worker.held():
            self._ask(event, at_boundary=True)
            if isinstance(event, m.StepDone):
                machine = self.machine
                self._counters.write(machine.step, machine.trained_tokens, machine.ledger_rows())
        if self._net and not isinstance(event, m.StepDone):
            self.wake.post(self._carry_out)

    def _feed(self, event: m.LearnerEvent) -> None:
        """Ask the machine on another occasion; from any thread."""
        with self._lock:
            self._ask(event, at_boundary=False)
        if threading.current_thread() is self._thread:
            self._carry_out()
        else:
            self.wake.post(self._carry_out)
        self._poke.set()

    def _ask(self, event: m.LearnerEvent, *, at_boundary: bool) -> None:
        """Hand an event to the machine and deal its actions out, in order. Under the lock."""
        now = self._clock()
        actions = self.machine.handle(event, now)
        if self._tape:
            self._tape(now, event, list(actions))
        for action in actions:
            self._deal(action, at_boundary)

    def _deal(self, action: m.LearnerAction, at_boundary: bool) -> None:
        if isinstance(action, m.Snapshot | m.Adopt | m.Drop | m.Reincarnate | Inner):
            if not at_boundary:
                raise MachineError(f"{type(action).__name__} away from a boundary")
            self._touch(action)
        elif isinstance(action, m.Prepare):
            self._acts.give_prepare(action)
        elif isinstance(action, m.SendInitial):
            self._acts.give_initial(action)
        elif isinstance(action, m.SendHandback):
            self._acts.give_handback(action)
        elif isinstance(action, m.Ready):
            self.wake.post(self._acts.withdraw)
            self._lifetime.phases.mark("values loaded")
            self._ready.set()
        elif isinstance(action, m.Finish):
            self._finish = self._finish or action
        else:
            if isinstance(action, m.Forget):
                self._acts.give_forget(action)
            elif isinstance(action, m.Stop):
                self._stopped = action
            self._net.append(action)

    def _touch(self, action: m.Snapshot | m.Adopt | m.Drop | m.Reincarnate | Inner) -> None:
        """Do what may only be done at a boundary: one copy, or one in-place change."""
        if isinstance(action, m.Snapshot):
            copied, reference = self._body.now_snapshot(action.fragment)
            self._acts.give_snapshot(action, copied, reference)
        elif isinstance(action, m.Adopt):
            unused = self._body.now_adopt(action.fragment, action.stamp)
            fragment = action.fragment
            self._worker.submit(lambda: self._body.give_back(fragment, unused))  # jobs before it may still read them
        elif isinstance(action, m.Drop):
            self._body.now_drop(action.fragment)
        elif isinstance(action, m.Reincarnate):
            self._reincarnate()
        elif (seen := self._acts.loans.now_do(action)) is not None:
            self._ask(seen, at_boundary=True)

    def _reincarnate(self) -> None:
        """Go on as a new incarnation: fresh inner state, counters and sockets of its own."""
        machine = self.machine
        self._counters.write(machine.step, machine.trained_tokens, machine.ledger_rows())
        self._counters.close()
        key = MemberKey(machine.key.name, new_incarnation())
        self._lifetime.now_start_over(machine.step)
        self._acts.loans.now_begin()
        self._counters = self.counting(
            self.settings.run.path, key, len(self.layout.fragments), base=self._lifetime.base, required=False
        )
        self._net.append(key)  # after what the old incarnation still has to say
        self._ask(m.Reborn(incarnation=key.incarnation), at_boundary=True)

    def _redial(self, key: MemberKey) -> None:
        self._roads.forget(m.SYNCER)
        self._transfers.inbox.cancel_peer(m.SYNCER)
        self._dialler.dial(key)

    # ---- the network thread

    def _run(self) -> None:
        try:
            self._loop.run(self)
        except Exception as error:  # told to the training thread, which raises it at its next step
            log.exception("the network thread of %s ends", self.key.name)
            self._failure = self._failure or error
        finally:
            self._over.set()
            for note in [action for action in list(self._net) if isinstance(action, m.Note)]:
                self._acts.do(note)
            self._dialler.close(0 if self._failure else LINGER_MS)
            self._context.term()
            self._poke.set()

    def _carry_out(self) -> None:
        while self._net:
            action = self._net.popleft()
            if isinstance(action, MemberKey):
                self._redial(action)
            else:
                self._acts.do(action)

    def on_message(self, key: MemberKey, message: Any, now: float) -> None:
        """A control message came in."""
        if self._transfers.on_message(key, message, now):
            return
        if isinstance(message, Welcome):
            self._acts.welcomed(key, message, now)
        self._lifetime.heard(message)
        self._feed(m.Received(key=m.SYNCER, message=message))

    def on_chunk(self, key: MemberKey, chunk: Any, payload: memoryview, now: float) -> None:
        """A chunk came in."""
        if self._transfers.on_chunk(key, chunk, payload, now) and self.machine.phase is LearnerPhase.FINISHING:
            self._feed(m.ChunkArrived())

    def on_time(self, now: float) -> None:
        """Inputs are drained."""
        self._carry_out()
        with self._lock:
            due = self.machine.deadline()
        if due is not None and now >= due:
            self._feed(m.TimerDue())
        self._acts.turn(now)

    def deadline(self) -> float | None:
        """The next moment at which machine or transfers want to be asked."""
        with self._lock:
            machine_due = self.machine.deadline()
        due = (machine_due, self._transfers.deadline())
        return min([self._clock() + GATHER_S, *(at for at in due if at is not None)])

    def _stop(self, action: m.Stop) -> None:
        if action.exit_code and self._ready.is_set():  # before that the constructor raises it
            log.error("%s is stopped code=%d why=%r", self.key.name, action.exit_code, action.reason)
        self._loop.stop(1.0)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._poke.set()

    def _raise_failure(self) -> None:
        if self._failure is not None and not self._closed:
            raise MachineError(f"this learner has failed and must be started again: {self._failure}") from self._failure
