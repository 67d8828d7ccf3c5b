"""Those who look on while chaos goes on: one hears every broadcast, one reads every checkpoint.

Rule: each is a thread of its own with its own socket or files, and takes no part in the run. What must never be is
written down as a fault, in words; whoever judges the run asks for them.
"""

import threading
from pathlib import Path

import zmq

from zdiloco.core.messages import Beat, Update
from zdiloco.errors import PeerError, StoreError
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road, dialling, identity_of, new_incarnation
from zdiloco.rundir.archive import FOLDER, Archive, read_newest
from zdiloco.rundir.survey import faults_of
from zdiloco.units import MemberKey, Stamp
from zdiloco.wire.encoding import decode

LOOK_S = 0.1
MOST_FAULTS = 20


class Stamps:
    """The newest stamp of every fragment that was ever seen; an older one afterwards is a fault."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._newest: dict[int, Stamp] = {}
        self.seen = 0
        self.epochs: set[int] = set()
        self.faults: list[str] = []

    def see(self, fragment: int, stamp: Stamp) -> None:
        """This fragment is at this stamp now."""
        self.seen += 1
        self.epochs.add(stamp.epoch.counter)
        before = self._newest.get(fragment, stamp)
        if stamp < before and len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{self._what} fragment {fragment} goes back from {shown(before)} to {shown(stamp)}")
        self._newest[fragment] = max(before, stamp)


def shown(stamp: Stamp) -> str:
    """A stamp for people."""
    return f"{stamp.epoch.counter}.{stamp.epoch.ident:x}/{stamp.version}"


class Listener:
    """Subscribes to the control broadcast, as a learner that only watches does, over all restarts of the syncer."""

    def __init__(self, net: NetParams) -> None:
        self.published, self.stable = Stamps("the published value of"), Stamps("the stable stamp of")
        self._net = net
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; harmless when repeated."""
        self._ends.set()
        self._thread.join()

    @property
    def faults(self) -> list[str]:
        """What must not have been."""
        return self.published.faults + self.stable.faults

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        key = MemberKey("listener", new_incarnation())
        socket = dialling(context, Road.CONTROL_CAST, self._net, identity_of(key))
        while not self._ends.is_set():
            if socket.poll(int(1000 * LOOK_S)):
                self._hear(socket.recv_multipart())
        socket.close(0)
        context.term()

    def _hear(self, frames: list[bytes]) -> None:
        try:
            message = decode(frames[-1])
        except PeerError as error:
            self.published.faults.append(f"a broadcast does not parse: {error}")
            return
        if isinstance(message, Update):
            self.published.see(message.fragment, message.stamp)
        elif isinstance(message, Beat):
            for fragment, version in enumerate(message.versions):
                self.published.see(fragment, Stamp(message.epoch, version))
            for fragment, version in enumerate(message.stable):
                self.stable.see(fragment, Stamp(message.epoch, version))


class Reader:
    """Reads the newest checkpoint again and again, while a syncer writes and dies."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.reads = 0
        self.faults: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more; harmless when repeated."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        stamps = Stamps("in checkpoints")
        while not self._ends.wait(LOOK_S):
            if not (self._run_dir / FOLDER).exists():
                continue
            try:
                cut = read_newest(self._run_dir)
            except StoreError as error:
                self.faults.append(f"a checkpoint cannot be read: {error}")
                continue
            if cut is not None:
                self.reads += 1
                for part in cut.fragments:
                    stamps.see(part.fragment, part.stamp)
            self.faults += stamps.faults
            stamps.faults.clear()
            del self.faults[MOST_FAULTS:]


def newest_fault(run_dir: Path) -> str:
    """What is wrong with the newest manifest and its files, while no syncer holds them; empty: nothing, or no such."""
    newest = Archive(run_dir).manifests()[:1]
    return "; ".join(fault for path in newest for fault in faults_of(path))
