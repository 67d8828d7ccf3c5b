"""The syncer in the real world: feeds its machine from the sockets, and has its decisions carried out.

Rule: the network thread alone touches machine, sockets and transfers. A failure on any thread ends the node, loudly.
"""

import dataclasses
import logging
import secrets
import threading
import time
from collections import deque
from functools import partial
from typing import Any

import zmq

from zdiloco import trace
from zdiloco.core import machine as m
from zdiloco.core.messages import Heartbeat, Hello, Unwelcome
from zdiloco.core.start import KnownState
from zdiloco.core.syncer import SyncerMachine
from zdiloco.errors import MachineError, ZdilocoError
from zdiloco.node.connections import Connections
from zdiloco.node.gate import Gate
from zdiloco.node.guard import guard_of
from zdiloco.node.hooks import Hooks
from zdiloco.node.invited import FOLDER
from zdiloco.node.keys import keys_of
from zdiloco.node.knock import knock
from zdiloco.node.loop import Loop
from zdiloco.node.opening import load_cut
from zdiloco.node.params import Settings
from zdiloco.node.proofs import Proofs
from zdiloco.node.returning import ReturnPhases
from zdiloco.node.roads import Roads
from zdiloco.node.shelf import Shelf
from zdiloco.node.sockets import BULK_HWM, Road, bound_again, bulk_hwm, cast_hwm, check_library, serving
from zdiloco.node.status import process_status, status_of
from zdiloco.node.syncer_acts import SyncerActs, SyncerParts
from zdiloco.node.syncer_body import SyncerBody
from zdiloco.node.transfers import Transfers
from zdiloco.node.wake import Wake
from zdiloco.node.worker import Worker
from zdiloco.rundir.archive import Cut
from zdiloco.rundir.journal import Journal
from zdiloco.rundir.store import Store
from zdiloco.tensor.layout import Layout
from zdiloco.tensor.robust import LEAST
from zdiloco.units import Epoch, MemberKey, run_id_of
from zdiloco.wire.invitations import Join, Joined
from zdiloco.wire.transfer import Credit

log = logging.getLogger(__name__)

LINGER_MS = 500
STOP_DRAIN_S = 2.0
KEY_NAME = "syncer"
"""Whose key a syncer has, unless `net.key` says otherwise."""


class SyncerNode:
    """One syncer process: opens its run folder and its ports; then `run` blocks until the run or the process ends.

    Afterwards `exit_code` and `reason` say how it ended. Raises ConfigError (a port or run folder in use, a wrong key,
    a checkpoint that cannot be used), StoreError (a full disk).
    """

    def __init__(self, settings: Settings, *, fresh: bool = False, hooks: Hooks | None = None) -> None:
        hooks = hooks or Hooks()
        check_library()
        self.settings = settings
        self.clock = hooks.clock
        self.exit_code = 1
        self.reason = "not started"
        self.failure: BaseException | None = None
        self.started_at = self.clock()
        self._tape, self._service, self._shared = hooks.tape, hooks.service, hooks.shared
        self._stop_asked = False
        self._closed = False
        self._events: deque[m.SyncerEvent] = deque()
        self._feeding = False
        self.store = Store(settings.run.path, keep=settings.checkpoint.keep)
        try:
            self._open(fresh)
        except BaseException:
            self.store.close()
            raise

    # ---- opening

    def _open(self, fresh: bool) -> None:
        run = self.settings.run
        cut = load_cut(self.store, run, fresh=fresh)
        state_read_at = self.clock()
        self.body = SyncerBody(self.settings.merge, run.init)
        if self.settings.merge.robust != "none" and self.settings.sync.min_quorum < LEAST:
            log.warning(
                "rounds of less than %d are merged as if nobody were hostile why='sync.min_quorum is %d'",
                LEAST,
                self.settings.sync.min_quorum,
            )
        layout = self.body.restore(cut) if cut is not None else None
        self._workers: list[Worker] = []
        self.context: zmq.Context[Any] = zmq.Context()
        self.wake = Wake()
        try:
            self._open_sockets(layout)
            self._assemble(cut, layout)
            self.journal = Journal(run.path)
        except BaseException:
            for worker in self._workers:
                worker.close(0.5)
            self.context.destroy(0)  # with every socket of it
            self.wake.close()
            raise
        self.journal.write(self._beginning())
        self.phases = ReturnPhases(self.started_at, self.journal.write) if cut is not None else None
        if self.phases:
            self.phases.ended("state read", state_read_at)
            self.phases.ended("sockets bound", self.clock())

    def _beginning(self) -> trace.Start:
        """The first record of this process: what is written after it was decided under these settings."""
        return trace.Start(
            t=self.clock(),
            wall=time.time(),
            run_id=self.machine.run_id,
            target_tokens=self.settings.run.target_tokens,
            sync=dataclasses.asdict(self.settings.sync),
        )

    def _assemble(self, cut: Cut | None, layout: Layout | None) -> None:
        run = self.settings.run
        self.machine = SyncerMachine(
            self.settings.sync,
            run_id=cut.run_id if cut else run_id_of(run.name, secrets.token_hex(6)),
            ident=secrets.randbits(64),
            now=self.clock(),
            target_tokens=run.target_tokens,
            known=_known(cut, layout, self.store.highest_epoch) if cut and layout else None,
        )
        if self._proofs:
            self.body.prove = partial(self._proofs.of_state, self.machine.run_id)
        self.machine.intakes.bundles.allowed = self.settings.relay.premerge and self.settings.merge.robust == "none"
        for name in ("zdiloco-worker", "zdiloco-saver"):
            self._workers.append(Worker(name, self._fail))
        parts = SyncerParts(
            settings=self.settings,
            clock=self.clock,
            wake=self.wake,
            roads=self.roads,
            transfers=self.transfers,
            shelf=self.shelf,
            body=self.body,
            store=self.store,
            worker=self._workers[0],
            saver=self._workers[1],
            feed=self._feed,
            widen=self._widen,
            stop=self._stop,
            identity=lambda: (self.machine.run_id, self.machine.epoch),
            status=lambda: status_of(self),
            proofs=self._proofs,
        )
        self.acts = SyncerActs(parts)

    def _open_sockets(self, layout: Layout | None) -> None:
        net = self.settings.net
        keys = keys_of(net, KEY_NAME, dials=False)
        self._proofs = Proofs(keys.own.secret) if keys else None
        guard = guard_of(self.context, net, keys, self.settings.run.path / FOLDER)
        gate = Gate(net, guard, self.clock, Connections(self.context, net, self.clock))
        self.roads = Roads({}, server=True, most_stripes=net.stripes, guard=guard, gate=gate)
        self._cast_hwm = self._hwm(layout)
        for road in Road:
            self.roads.sockets[road] = self._bound(road)
        if guard:
            knock(guard, self.roads.sockets.values())
        self.loop = Loop(self.roads, self.wake, self.clock, self._service)
        params = net.inbox(self.settings.sync.budget_bytes + self.settings.sync.loan_bytes)
        self.transfers = Transfers(self.roads, params, self._arrived, self._lost, keeps_early=False)
        self.shelf = Shelf(self.transfers.outbox, self.roads.drop_everywhere)
        self.transfers.on_credit = self._credited
        self.loop.between = partial(self.transfers.turn, judge=False)

    def _hwm(self, layout: Layout | None) -> int:
        return cast_hwm(4 * max(layout.numels), self.settings.net.chunk_bytes) if layout else 0

    def _widen(self, layout: Layout) -> None:
        """Open the bulk broadcast anew with a mark that holds two updates; nothing has been sent on it yet."""
        if self._hwm(layout) > BULK_HWM:
            self._cast_hwm = self._hwm(layout)
            self._bind_again(Road.BULK_CAST)

    def _bound(self, road: Road) -> Any:
        net = self.settings.net
        mark = {Road.BULK_CAST: self._cast_hwm, Road.BULK: bulk_hwm(net.window_bytes, net.chunk_bytes)}
        guard, gate = self.roads.guard, self.roads.gate
        made = gate.connections if gate else None
        return serving(self.context, road, net, mark.get(road, 0), guard=guard, connections=made)

    def _bind_again(self, road: Road) -> None:
        self.roads.sockets[road] = bound_again(self.roads.sockets[road], lambda: self._bound(road), self.clock)

    # ---- the life of the process

    def run(self) -> int:
        """Serve until the end; returns the exit code. Raises what made the node itself fail."""
        net = self.settings.net
        log.info("syncer serves run=%s listen=%s port=%d", self.machine.run_id, net.listen, net.port)
        try:
            self._feed(m.TimerDue())
            self.loop.run(self)
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            self._service.stops(str(self.failure or self.reason))
            self.close()
        if self.failure is None:
            log.info("syncer ends why=%r", self.reason)
            return self.exit_code
        if isinstance(self.failure, ZdilocoError) or not isinstance(self.failure, Exception):
            raise self.failure
        raise MachineError(f"the syncer failed: {self.failure!r}") from self.failure

    def stop(self, reason: str) -> None:
        """Have the process end in order; from any thread or signal handler, harmless when repeated."""
        if not self._stop_asked:
            self._stop_asked = True
            self.wake.post(lambda: self._feed(m.LeaveRequested(reason=reason)))

    def look_again(self) -> None:
        """Read anew who may connect, and everybody who was banned; from any thread or signal handler. Where a key is no
        longer good all connections are made anew, so that its owner is out at once, listeners, too."""
        self.wake.post(self._service.reloads)
        self.wake.post(self._look_again)

    def _look_again(self) -> None:
        guard = self.roads.guard
        if self.roads.gate:
            self.roads.gate.release_all()
        if guard is None:
            log.warning("there are no keys (net.keys): nothing to read anew")
        elif guard.reload():
            self._shut_out()

    def _shut_out(self) -> None:
        """Every connection is made anew: nobody can be left out who listens."""
        for road in Road:
            self._bind_again(road)

    def close(self) -> None:
        """Let go of everything; `run` does so at its end. Harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.close(30.0)
        self.journal.close(self.clock(), self.reason, process_status(self))
        self.roads.close(0 if self.failure else LINGER_MS)
        self.context.term()
        self.wake.close()
        self.store.close()

    def start(self) -> threading.Thread:
        """Run on a thread of its own; `failure`, `exit_code` and `reason` say afterwards how it went."""

        def quietly() -> None:
            try:
                self.run()
            except ZdilocoError:
                log.exception("the syncer failed")

        thread = threading.Thread(target=quietly, name="zdiloco-network", daemon=True)
        thread.start()
        return thread

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.wake.post(lambda: self.loop.stop(0.0))

    def _stop(self, action: m.Stop) -> None:
        self.exit_code, self.reason = action.exit_code, action.reason
        self.loop.stop(STOP_DRAIN_S)

    # ---- what the loop brings

    def on_message(self, key: MemberKey, message: Any, now: float) -> None:
        """A control message came in."""
        if self._proofs and isinstance(message, Hello | Heartbeat):
            message = self._proofs.believed(self.machine.run_id, self.machine.epoch, key, message)
        if isinstance(message, Join):
            self._join(key, message)
            return
        if isinstance(message, Hello):  # it missed us, and what was on its way may be lost
            self.transfers.inbox.resume(key, now)
        if not self.transfers.on_message(key, message, now):
            self._feed(m.Received(key=key, message=message))

    def _join(self, key: MemberKey, message: Join) -> None:
        """Who was invited brings its own key: it is told the run's settings, or why not."""
        guard = self.roads.guard
        why = guard.join(key.name, message.key) if guard else "there are no keys here"
        answer: Unwelcome | Joined = Joined(run_id=self.machine.run_id, settings=self._shared)
        self.roads.send(key, Unwelcome(reason="key", text=why, fatal=True) if why else answer)

    def on_chunk(self, key: MemberKey, chunk: Any, payload: memoryview, now: float) -> None:
        """A chunk came in."""
        self.transfers.on_chunk(key, chunk, payload, now)

    def on_time(self, now: float) -> None:
        """Inputs are drained."""
        if self.roads.guard and self.roads.guard.expired():
            self._shut_out()
        due = self.machine.deadline()
        if due is not None and now >= due:
            self._feed(m.TimerDue())
        self.transfers.turn(now)
        self.shelf.sweep(now)
        self.acts.states.turn(now)

    def deadline(self) -> float | None:
        """The next moment at which machine, transfers or pulls want to be asked."""
        asked = self.machine.deadline(), self.transfers.deadline(), self.acts.states.pulls.deadline()
        return min((at for at in asked if at is not None), default=None)

    def _credited(self, key: MemberKey, credit: Credit, now: float) -> None:
        self.shelf.used(key, credit, now)
        self.acts.states.credited(key, credit, now)

    def _arrived(self, key: MemberKey, transfer: str, now: float) -> None:
        self.acts.arrived(key, transfer, now)

    def _lost(self, key: MemberKey, transfer: str, reason: str, now: float) -> None:
        self.acts.lost(key, transfer, reason, now)

    def _feed(self, event: m.SyncerEvent) -> None:
        """Hand one event to the machine and carry out what it says; events born meanwhile come after."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                now = self.clock()
                one = self._events.popleft()
                actions = self.machine.handle(one, now)
                if self._tape:
                    self._tape(now, one, list(actions))
                self.journal.look(now, one, actions, self.machine)
                if self.phases:
                    self.phases.look(now, one, actions, self.machine)
                for action in actions:
                    self.acts.do(action)
        finally:
            self._feeding = False


def _known(cut: Cut, layout: Layout, highest_epoch: int) -> KnownState:
    """What the machine starts from: the checkpoint, above every epoch that this folder has ever seen."""
    return KnownState(
        run_id=cut.run_id,
        epoch=max(cut.epoch, Epoch(highest_epoch, 0)),
        layout_digest=layout.digest,
        numels=layout.numels,
        shares=layout.shares,
        stamps=tuple(part.stamp for part in cut.fragments),
        maps=tuple(part.map_ for part in cut.fragments),
        replaced=cut.replaced,
        live=cut.live,
    )
