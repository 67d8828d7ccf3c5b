"""What attackers do in the attacks of docs/attacks.md: on raw sockets, with keys or without.

Rule: an attacker never waits without an end, and nothing here judges what became of an attack.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from tests.accept.siege import Siege
from tests.hostile.enemy import LIMIT_S, PORTS, Enemy
from zdiloco.core import messages as w
from zdiloco.core.body import Body
from zdiloco.node.sockets import Road
from zdiloco.units import MemberKey, Stamp
from zdiloco.wire.encoding import decode, encode
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit

CHUNK = 1024
ENDED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
)  # fmt: skip


def handshakes(siege: Siege, options: dict[int, Any]) -> dict[Road, str]:
    """How a stranger with these options fares at each of the four ports: how its first handshake there ended."""
    found: dict[Road, str] = {}
    for road in Road:
        cast = road in (Road.CONTROL_CAST, Road.BULK_CAST)
        made = siege.context.socket(zmq.SUB if cast else zmq.DEALER)
        told = made.get_monitor_socket(ENDED)
        try:
            made.setsockopt(zmq.LINGER, 0)
            for option, value in options.items():
                made.setsockopt(option, value)
            if cast:
                made.setsockopt(zmq.SUBSCRIBE, b"")
            made.connect(f"tcp://127.0.0.1:{siege.stage.port + PORTS[road]}")
            assert told.poll(LIMIT_S * 1000), f"no handshake ended on {road}"
            event = parse_monitor_message(told.recv_multipart())["event"]
            found[road] = zmq.Event(event).name.removeprefix("HANDSHAKE_")
        finally:
            made.disable_monitor()
            told.close(0)
            made.close(0)
    return found


def flooded(send: Callable[[], None], times: int) -> int:
    """Say something so often, whatever the socket takes at once; returns how often it was taken."""
    taken = 0
    for _ in range(times):
        with suppress(zmq.Again):
            send()
            taken += 1
    return taken


class Member:
    """One that is let in and welcomed, under its own name and by its own key, and then does as it likes."""

    def __init__(self, siege: Siege, key: MemberKey | None = None, **hello: Any) -> None:
        siege.ready()
        self.siege, self.key = siege, key or siege.rogue()
        self.enemy: Enemy = siege.enemy(self.key, self.key.name)
        self.outbox = Outbox()
        self.sent: list[tuple[Road, list[bytes]]] = []
        self.layout = siege.layout
        self.run_id = siege.ask()["run_id"]
        self.say(w.Hello(**{
            "name": self.key.name, "incarnation": self.key.incarnation, "layout_digest": self.layout.digest,
            "run_id": self.run_id, **hello,
        }))  # fmt: skip
        self.welcome: w.Welcome = self.enemy.hear(w.Welcome)

    def say(self, *messages: Any) -> None:
        """Say it, and keep a record of it."""
        for message in messages:
            self.frames(Road.CONTROL, encode(message))

    def frames(self, road: Road, *frames: bytes) -> None:
        self.sent.append((road, list(frames)))
        self.enemy.frames(road, *frames)

    def trains(self, step: int = 1) -> None:
        """It is believed to train: it has told of a step."""
        for at in (0, step):
            self.say(w.Report(step=at, trained_tokens=4 * at, unmerged_tokens=4 * at, dropped_tokens=0))

    def version(self, fragment: int = 0) -> int:
        """The version of a fragment now."""
        return int(self.siege.ask()["fragments"][fragment]["version"])

    def body(self, name: str, payload: bytes) -> Body:
        """Put a payload on offer."""
        self.outbox.drop(name)
        return self.outbox.add(name, payload, CHUNK)

    def zeros(self, fragment: int = 0) -> bytes:
        return bytes(4 * self.layout.numels[fragment])

    def offer(self, seq: int, payload: bytes, **changes: Any) -> w.Contribution:
        """A contribution in fp32 that could be right, but for `changes`."""
        fragment = changes.get("fragment", 0)
        version = self.version(fragment if fragment < len(self.layout.numels) else 0)
        body = changes.pop("body", None) or self.body(f"c/{seq}", payload)
        fields: dict[str, Any] = {
            "fragment": 0, "seq": seq, "after": 0, "stamp": Stamp(self.welcome.epoch, version), "steps": 1, "tokens": 4,
            "cut_step": 1, "version": version + 1, "codec": "fp32", "body": body,
        }  # fmt: skip
        return w.Contribution(**{**fields, **changes})

    def serve(self, *kinds: type, spoil: Callable[[Any], Any] | None = None, limit_s: float = LIMIT_S) -> Any:
        """Give out what credit is given for (each chunk as `spoil` makes it), until one of these words is heard."""
        ends = time.monotonic() + limit_s
        control = self.enemy.sockets[Road.CONTROL]
        while time.monotonic() < ends:
            if not control.poll(200):
                self.say(w.Heartbeat(epoch=self.welcome.epoch))
                continue
            message = decode(control.recv())
            if isinstance(message, Credit):
                self._give(message, spoil)
            if isinstance(message, kinds):
                return message
        raise AssertionError(f"nobody said {' or '.join(kind.__name__ for kind in kinds)}")

    def _give(self, credit: Credit, spoil: Callable[[Any], Any] | None) -> None:
        """Give out what this is credit for."""
        for out in self.outbox.on_credit("syncer", credit) if credit.transfer in self.outbox else ():
            header, payload = (spoil or (lambda chunk: chunk))((out.header, bytes(out.view)))
            self.frames(Road.BULK, encode(header), payload)

    def offered(self, contribution: w.Contribution, **how: Any) -> Any:
        """Offer it, serve it, and return the word about it that is not credit."""
        self.say(contribution)
        while True:
            said = self.serve(w.Refused, w.Ack, w.Unwelcome, **how)
            about = getattr(said, "seq", contribution.seq)
            if isinstance(said, w.Ack) and contribution.seq not in (said.held, said.merged):
                continue
            if about == contribution.seq:
                return said

    def judged(self, frames: int) -> None:
        """Wait until so many of its frames were looked at."""
        self.siege.until(lambda: self.siege.heard(self.key)["frames_down"] >= frames, f"{frames} frames are judged")


class Tap:
    """Four ports that pass everything on to the syncer, and keep what clients have said, connection by connection."""

    def __init__(self, port: int, target: int) -> None:
        self.heard: list[tuple[int, list[bytes]]] = []
        self._over, self._threads = threading.Event(), list[threading.Thread]()
        for road in range(4):
            listener = socket.create_server(("127.0.0.1", port + road))
            listener.settimeout(0.1)
            self._start(self._accept, listener, target + road, road)

    def _start(self, job: Callable[..., None], *words: Any) -> None:
        self._threads.append(threading.Thread(target=job, args=words, name="tap", daemon=True))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket, target: int, road: int) -> None:
        with listener:
            while not self._over.is_set():
                with suppress(TimeoutError):
                    self._join(listener.accept()[0], target, road)

    def _join(self, near: socket.socket, target: int, road: int) -> None:
        """Somebody has dialled: so do we, and keep what it says."""
        far, said = socket.create_connection(("127.0.0.1", target)), list[bytes]()
        self.heard.append((road, said))
        self._start(self._pass, near, far, said)
        self._start(self._pass, far, near, [])

    def _pass(self, here: socket.socket, there: socket.socket, said: list[bytes]) -> None:
        here.settimeout(0.1)
        with suppress(OSError):
            while not self._over.is_set() and (data := _read(here)) != b"":
                said.append(data or b"")
                there.sendall(data or b"")
        for end in (here, there):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        """Pass nothing on any more."""
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT_S)


def _read(here: socket.socket) -> bytes | None:
    """What has come; None: nothing yet; empty: the other side has hung up."""
    with suppress(TimeoutError):
        return here.recv(65536)
    return None


def _drained(made: socket.socket) -> None:
    """Read until the other side hangs up. Raises TimeoutError where it does not."""
    while made.recv(65536):
        continue


def played_again(port: int, heard: list[tuple[int, list[bytes]]]) -> int:
    """Say to a syncer all that was heard on connections to it, each on a new one; returns how many it has closed."""
    closed = 0
    for road, said in heard:
        with socket.create_connection(("127.0.0.1", port + road), timeout=LIMIT_S) as made:
            with suppress(ConnectionError):
                made.sendall(b"".join(said))
            with suppress(OSError):  # it is closed already
                made.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                _drained(made)
        closed += 1
    return closed


class Loris:
    """Connections that send one byte a second of what a greeting begins with, until they are closed."""

    def __init__(self, port: int, count: int) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port + at % 4), timeout=LIMIT_S) for at in range(count)]
        self.began, self.closed = time.monotonic(), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loris", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        left = list(self._sockets)
        for byte in b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(200):
            left = [made for made in left if _takes(made, bytes([byte]))]
            self.closed = len(self._sockets) - len(left)
            if not left or self._over.wait(1.0):
                return

    def close(self) -> None:
        """Hang up."""
        self._over.set()
        self._thread.join(LIMIT_S)
        for made in self._sockets:
            made.close()


def _takes(made: socket.socket, data: bytes) -> bool:
    """Whether a connection still takes something; what comes is passed over."""
    made.settimeout(0.001)
    with suppress(ConnectionError):
        made.send(data)
        while (said := _read(made)) is not None:
            if not said:
                return False
        return True
    return False
