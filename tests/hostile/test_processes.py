"""Real processes among enemies: what a syncer keeps of memory and descriptors is bounded, and its run goes on.

Figures are of the kernel, from /proc. Bounds are stated: the resident memory of a syncer grows under attack by the
queues of its sockets, `QUEUES_BYTES`, and by what each peer that reads nothing may hold, `PEER_BYTES`.
"""

import random
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.accept.stage import SLOW_MACHINE_S, Child, Stage, assert_balanced
from tests.hostile.enemy import PORTS, Enemy, greeting, nonsense
from tests.hostile.scene import OPEN
from zdiloco.core import messages as w
from zdiloco.node.sockets import BULK_HWM, Road, bulk_hwm
from zdiloco.units import MemberKey
from zdiloco.wire.encoding import encode
from zdiloco.wire.transfer import Chunk, Credit

pytestmark = [
    pytest.mark.net,
    pytest.mark.proc,
    pytest.mark.timeout(SLOW_MACHINE_S),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, which is of Linux"),
]

MB = 2**20
CHUNK = 4096
WINDOW = 2**18
QUEUES_BYTES = 64 * MB
"""Frames that have come in and were not looked at yet, and what the allocator keeps of them."""


class Figures:
    """Resident memory, descriptors and threads of a process, and the highest of the first."""

    def __init__(self, child: Child) -> None:
        self.folder = Path(f"/proc/{child.pid}")

    @property
    def resident_bytes(self) -> int:
        return self._status("VmRSS") * 1024

    @property
    def highest_bytes(self) -> int:
        return self._status("VmHWM") * 1024

    @property
    def threads(self) -> int:
        return self._status("Threads")

    @property
    def descriptors(self) -> int:
        return len(list((self.folder / "fd").iterdir()))

    def _status(self, name: str) -> int:
        lines = (self.folder / "status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


class Scene:
    """A syncer and a learner whose fragments are large, as processes; at its end the ledger must balance."""

    def __init__(self, stage: Stage) -> None:
        stage.write(
            sync={"budget_bytes": 16 * MB, "sync_period": 4, "checkpoint_every_s": 5.0},
            net={"chunk_bytes": CHUNK, "window_bytes": WINDOW, "stall_s": 1.0, **OPEN},
        )
        self.stage = stage
        self.syncer = stage.cold_sync()
        script = stage.folder / "big_script.py"
        shutil.copy(Path(__file__).parent / "big_script.py", script)
        self.learner = stage.run("script-big", script, str(stage.toml), "big", "0.01")
        self.goes_on()
        self.figures = Figures(self.syncer)
        self.before = self.figures.resident_bytes

    def goes_on(self, rounds: int = 8) -> None:
        """So many rounds more are merged, while both live."""
        merged = self.stage.rounds()
        self.stage.until(
            lambda: self.stage.rounds() >= merged + rounds, f"{rounds} rounds more", self.syncer, self.learner
        )

    @property
    def grown_bytes(self) -> int:
        """By how much the syncer's highest resident memory lies above that before the attack."""
        return self.figures.highest_bytes - self.before

    def end(self) -> str:
        """The run goes on, both leave in order, the books balance; what the syncer said."""
        self.goes_on()
        self.stage.end(self.learner, self.syncer)
        assert "Traceback" not in self.syncer.errors
        assert_balanced(self.stage.fates())
        return self.syncer.errors


@pytest.fixture
def scene(stage: Stage) -> Scene:
    return Scene(stage)


@contextmanager
def doing(job: Any, *jobs: Any) -> Iterator[None]:
    """Have each `job(over)` done on a thread of its own until the block ends and sets `over`."""
    over = threading.Event()
    threads = [threading.Thread(target=each, args=(over,), name=f"enemy-{at}") for at, each in enumerate([job, *jobs])]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    """Raw connections that are closed at the end, however the test ends."""
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


@pytest.mark.slow
def test_five_hundred_connections_that_come_say_nothing_and_go(scene: Scene, opened: list[socket.socket]) -> None:
    """W-2: User case E-81: half of them shake hands; 500 at once, and 500 one after the other. Descriptors are flat."""
    figures, port = scene.figures, scene.stage.port
    flat = figures.descriptors
    for at in range(250):
        opened.append(socket.create_connection(("127.0.0.1", port + at % 4), timeout=120))
        opened.append(greeting(port, list(Road)[at % 4]))
    scene.stage.until(lambda: figures.descriptors >= flat + 450, "all are taken in", scene.syncer)
    scene.goes_on()
    for made in opened:
        made.close()
    scene.stage.until(lambda: figures.descriptors <= flat + 2, "all descriptors are let go", scene.syncer)
    for at in range(500):
        if at % 2:
            greeting(port, list(Road)[at % 4]).close()
        else:
            socket.create_connection(("127.0.0.1", port + at % 4), timeout=120).close()
    scene.stage.until(lambda: figures.descriptors <= flat + 2, "descriptors are flat", scene.syncer)
    assert scene.grown_bytes <= QUEUES_BYTES
    scene.end()


@pytest.mark.slow
def test_subscribers_that_never_read(scene: Scene, opened: list[socket.socket]) -> None:
    """W-12: User case E-77: ten subscribers that read nothing while far more is broadcast than all of them may hold."""
    for road in (Road.CONTROL_CAST, Road.BULK_CAST):
        for _ in range(10):
            made = socket.socket()
            opened.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect(("127.0.0.1", scene.stage.port + PORTS[road]))
            _subscribe(made)
    up = scene.stage.status()["node"]["peers"]["broadcast"]["bytes_up"]
    mark = max(BULK_HWM, 2 * (4 * 2**18 // CHUNK + 2)) * CHUNK
    wanted = 60 * mark
    scene.stage.until(
        lambda: scene.stage.status()["node"]["peers"]["broadcast"]["bytes_up"] >= up + wanted,
        f"{wanted} bytes of broadcast",
        scene.syncer,
        scene.learner,
    )
    assert scene.grown_bytes <= 10 * mark + QUEUES_BYTES < wanted
    print(f"broadcast {wanted / MB:.0f} MB to 10 that read nothing: grown by {scene.grown_bytes / MB:.1f} MB")
    scene.end()


def _subscribe(made: socket.socket) -> None:
    """Shake hands as a subscriber does, ask for everything, and read no more than that needs."""
    made.settimeout(30)
    made.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(23, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
    made.sendall(b"\x04" + bytes([len(ready)]) + ready)
    left = 64
    while left:
        left -= len(made.recv(left))
    made.sendall(b"\x00\x01\x01")


@pytest.mark.slow
def test_peers_that_ask_for_everything_and_read_nothing(scene: Scene, zctx: Any) -> None:
    """W-13: Ten that were welcomed give credit for every state that they hear of, and never read a chunk."""

    def greedy(number: int) -> Any:
        def ask(over: threading.Event) -> None:
            key = MemberKey(f"greedy-{number}", 7)
            enemy = Enemy(context, scene.stage.port, key)
            listen = context.socket(zmq.SUB)
            listen.connect(f"tcp://127.0.0.1:{scene.stage.port + PORTS[Road.CONTROL_CAST]}")
            listen.setsockopt(zmq.SUBSCRIBE, b"")
            enemy.sockets[Road.BULK].setsockopt(zmq.RCVHWM, 1)
            enemy.say(w.Hello(name=key.name, incarnation=7, watching=True))
            names: list[str] = []
            while not over.is_set():
                while listen.poll(20):
                    message = _decoded(listen.recv())
                    names += [message.body.transfer] if isinstance(message, w.Update) else []
                for name in names[-50:]:
                    credit = Credit(transfer=name, upto=2**40, received=0, missing=((0, 2**20),))
                    with suppress(zmq.Again):
                        enemy.sockets[Road.CONTROL].send(encode(credit), zmq.NOBLOCK)
            enemy.close()
            listen.close(0)

        return ask

    context = zctx
    body_bytes = 2 * 2**18
    with doing(*(greedy(number) for number in range(10))):
        began, rounds = time.monotonic(), scene.stage.rounds()
        for least in range(rounds + 50, rounds + 201, 50):  # each with a limit of its own
            scene.stage.until(
                lambda least=least: scene.stage.rounds() >= least, "50 rounds more", scene.syncer, scene.learner
            )
        began, grown = time.monotonic() - began, scene.grown_bytes
        offered = scene.stage.status()["node"]["offered_bytes"]
    published = 200 * body_bytes
    held = 10 * (bulk_hwm(WINDOW, CHUNK) * CHUNK // body_bytes + 1) * body_bytes + 4 * 2 * 5 * body_bytes
    print(f"published {published / MB:.0f} MB, on offer {offered / MB:.1f} MB, grown by {grown / MB:.1f} MB")
    assert offered <= 4 * 2 * 5 * (body_bytes + 2**16)
    assert grown <= held + QUEUES_BYTES // 2 < published
    scene.end()


def _decoded(data: bytes) -> Any:
    from zdiloco.wire.encoding import decode

    return decode(data)


@pytest.mark.slow
def test_a_flood_of_garbage_from_all_sides(scene: Scene, zctx: Any) -> None:
    """W-14: Three peers send garbage, and chunks that nobody granted, as fast as this machine can."""

    def flood(seed: int) -> Any:
        def send(over: threading.Event) -> None:
            enemy = Enemy(zctx, scene.stage.port, MemberKey(f"eve-{seed}", 7))
            noise = nonsense(random.Random(seed))
            frames = [entry for entry in (next(noise) for _ in range(400)) if entry[0] in enemy.sockets]
            chunk = (Road.BULK, [encode(Chunk(transfer="c/1", index=0, checksum=0)), bytes(2**20)])
            while not over.is_set():
                for road, parts in [*frames, chunk]:
                    with suppress(zmq.Again):
                        enemy.sockets[road].send_multipart(parts, zmq.NOBLOCK)
            enemy.close()

        return send

    def refused() -> int:
        peers = scene.stage.status().get("node", {}).get("peers", {})
        return sum(sum(each["malformed"].values()) for name, each in peers.items() if name.startswith("eve"))

    began, rounds = time.monotonic(), scene.stage.rounds()
    with doing(*(flood(seed) for seed in range(3))):
        scene.stage.until(lambda: refused() >= 5000, "5,000 frames of garbage", scene.syncer, scene.learner)
        scene.goes_on(5)
        took, merged = time.monotonic() - began, scene.stage.rounds() - rounds
    print(f"{refused()} frames of garbage, {merged} rounds in {took:.1f} s: grown by {scene.grown_bytes / MB:.1f} MB")
    assert scene.grown_bytes <= QUEUES_BYTES + 3 * bulk_hwm(WINDOW, CHUNK) * 2**20
    assert len(scene.end().splitlines()) < 200


def test_a_member_that_is_refused_all_the_time_does_not_fill_the_log(scene: Scene, zctx: Any) -> None:
    """P-14: Hellos of ever new names, each of them news: the log grows at a bounded rate."""
    for number in range(1, 200):
        made = Enemy(zctx, scene.stage.port, MemberKey(f"eve-{number}", number))
        made.say(w.Hello(name=f"eve-{number}", incarnation=number, watching=True))
        made.hear(w.Welcome)
        made.close()
    said = scene.end()
    assert "eve-1 joins" in said
    assert len(said.splitlines()) < 1000 + 50 * 240
