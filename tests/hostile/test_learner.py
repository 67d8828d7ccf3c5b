"""A living learner among enemies: an impostor on the syncer's ports sends garbage, and worse, on all four roads.

Without keys a peer that speaks the protocol well can say what a syncer may say, that the run is over, for one; here it
never does. Everything else must leave the learner as it was: it trains on, and joins the syncer when that is there.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tests.hostile.enemy import LIMIT_S, PORTS, malformed_headers, nonsense, zip_bomb
from tests.node.test_loopback import assert_balanced, crash, node_of
from zdiloco.core import messages as w
from zdiloco.errors import ConfigError
from zdiloco.node.sockets import Road
from zdiloco.units import NO_EPOCH, Epoch, Stamp
from zdiloco.wire.early import EARLY_MAX_BYTES, EARLY_MAX_CHUNKS
from zdiloco.wire.encoding import decode, encode
from zdiloco.wire.transfer import Chunk, Credit, Gone, checksums_of, make_body

pytestmark = [pytest.mark.net, pytest.mark.slow]
MakeRun = Callable[..., Any]
CASTS = (Road.CONTROL_CAST, Road.BULK_CAST)


class Impostor:
    """Sits on the four ports of a syncer, on a thread of its own, and sends to whoever has said something.

    `of_old`: also what ends a learner, in the name of an epoch that is over; one that has none yet would believe it.
    """

    def __init__(self, context: Any, port: int, seed: int, of_old: bool) -> None:
        self._of_old = of_old
        self.sockets: dict[Road, Any] = {}
        self.peers: dict[Road, set[bytes]] = {Road.CONTROL: set(), Road.BULK: set()}
        self.heard: list[Any] = []
        self.sent = 0
        self._rng = random.Random(seed)
        for road in Road:
            made = self.sockets[road] = context.socket(zmq.PUB if road in CASTS else zmq.ROUTER)
            made.setsockopt(zmq.LINGER, 0)
            _bind(made, port + PORTS[road])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="impostor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let go of the ports."""
        self._over.set()
        self._thread.join()
        for made in self.sockets.values():
            made.close(0)

    def _run(self) -> None:
        noise, wrong = nonsense(self._rng), malformed_headers()
        while not self._over.is_set():
            for _ in range(20):
                road, frames = next(noise)
                self._send(road, frames)
                self._send(self._rng.choice(list(Road)), [self._rng.choice(wrong)])
                self._send(*self._said())
            self._listen()

    def _listen(self) -> None:
        """Hear what learners say: who they are, and what to answer out of place."""
        for road in self.peers:
            if self.sockets[road].poll(2):
                sender, *frames = self.sockets[road].recv_multipart()
                self.peers[road].add(sender)
                self.heard.append(decode(frames[0]))

    def _send(self, road: Road, frames: list[bytes]) -> None:
        for sender in [b""] if road in CASTS else list(self.peers[road]):
            self.sent += 1
            try:
                self.sockets[road].send_multipart(([] if road in CASTS else [sender]) + frames, zmq.NOBLOCK)
            except zmq.Again:
                continue

    def _said(self) -> tuple[Road, list[bytes]]:
        """A well-formed message, or chunk, that makes no sense here."""
        some = self._rng.choice
        name, fragment = some(["update/0", "c/0/1", "c/1/2", "layout/1", ""]), some([0, 1, 2, 511])
        if some([True, False]):
            part = bytes(some([0, 100, 60_000]))
            checksum = checksums_of(part, 2**20)[0] if part else 0
            own_name, index = f"{name}/{self._rng.randrange(10**6)}", some([0, 1, 2**50])
            header = Chunk(transfer=own_name, index=index, checksum=checksum)
            return some([Road.BULK, Road.BULK_CAST]), [encode(header), part]
        count, epoch = some([0, 1, 5, 2**53]), some([NO_EPOCH, Epoch(0, 1)])
        body = some([make_body(name, b"x", 1024), w.Body(transfer=name, nbytes=count, chunk_bytes=1, digest=1)])
        last = [
            w.Farewell(epoch=NO_EPOCH, finished=True, reason="over"),
            w.Welcome(epoch=NO_EPOCH, run_id="?", order=1, versions=(1,) * 9, progress=0.9),
        ]
        message = some([
            *(last if self._of_old else []),
            w.Beat(epoch=epoch, open_rounds=((fragment, 1),), versions=(count,), stable=(count,), progress=0.5),
            w.Call(epoch=epoch, fragment=fragment, version=max(1, count)),
            w.Ack(fragment=fragment, held=count, merged=0),
            w.Update(fragment=fragment, stamp=Stamp(epoch, count), full=some([True, False]), codec=some(["bf16", "?"]),
                     value_bytes=count, body=body),
            w.Refused(fragment=fragment, seq=count, reason=some(["epoch", "budget", "?"]), text="no"),
            w.Lend(fragment=fragment, number=count, kind=some(["AdamW", ""])),
            w.Loan(fragment=fragment, number=count, kind="AdamW", stamp=Stamp(epoch, count), codec="bf16", body=body),
            w.LoanOver(fragment=fragment, number=count, reason="no"),
            w.HandbackRequest(fragment=fragment), w.Status(body=body), w.Donate(), w.StatusQuery(),
            w.Unwelcome(reason=some(["starting", "unknown", "?"]), text="no", fatal=False),
            Credit(transfer=name, upto=2**50, received=some([0, 2**50]), missing=((0, 2**40),)),
            Gone(transfer=name, by_sender=some([True, False]), reason="no"),
        ])  # fmt: skip
        return some([Road.CONTROL, Road.CONTROL_CAST]), [encode(message)]


def _bind(made: Any, port: int) -> None:
    """Take a port that somebody is just letting go."""
    ends, pause = time.monotonic() + LIMIT_S, threading.Event()
    while True:
        try:
            made.bind(f"tcp://127.0.0.1:{port}")
            return
        except zmq.ZMQError:
            assert time.monotonic() < ends, f"port {port} is not let go"
            pause.wait(0.01)


@pytest.fixture
def impostors(zctx: Any) -> Iterator[Callable[..., Impostor]]:
    made: list[Impostor] = []

    def make(port: int, seed: int = 1, *, of_old: bool = True) -> Impostor:
        made.append(Impostor(zctx, port, seed, of_old))
        return made[-1]

    yield make
    for each in made:
        each.close()


def start_again(run: Any) -> Any:
    """Start a syncer on ports that an impostor has just let go."""
    ends, pause = time.monotonic() + LIMIT_S, threading.Event()
    while True:
        try:
            return run.start_syncer()
        except ConfigError:
            if time.monotonic() > ends:
                raise
            pause.wait(0.05)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_learner_whose_syncer_is_replaced_by_an_impostor_trains_on(
    run_of: MakeRun, impostors: Callable[..., Impostor], seed: int
) -> None:
    """W-15."""
    run = run_of(net={"receive_bytes": 2**20})
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: syncer.machine.rounds >= 6, "six rounds")
    crash(run)
    impostor = impostors(run.config.net.port, seed)
    node = node_of(trainer)
    run.until(lambda: len(impostor.heard) > 5 and impostor.sent > 3000, "what the impostor has to say")
    steps = trainer.steps
    run.until(lambda: trainer.steps > steps + 50, "steps meanwhile")
    assert sum(node._roads.counts[key].malformed.total() for key in node._roads.counts) > 100
    transfers = node._transfers
    assert transfers.inbox.reserved_bytes <= 2**20
    assert transfers._early.nbytes <= EARLY_MAX_BYTES
    assert transfers._early.chunks <= EARLY_MAX_CHUNKS
    impostor.close()
    second = start_again(run)
    run.until(lambda: second.machine.rounds >= 4, "rounds of the real one")
    trainer.stop()
    run.stop_syncer()
    assert trainer.error is None
    assert_balanced(run.config.run.path, second)


def test_a_learner_that_meets_an_impostor_first_joins_the_syncer_later(
    run_of: MakeRun, impostors: Callable[..., Impostor]
) -> None:
    run = run_of()
    impostor = impostors(run.config.net.port, of_old=False)
    trainer = run.join("a")
    run.until(lambda: impostor.sent > 3000 and len(impostor.heard) > 3, "what the impostor has to say")
    assert trainer.error is None
    assert not trainer.joined.is_set()
    impostor.close()
    syncer = start_again(run)
    run.until(lambda: syncer.machine.rounds >= 4, "rounds of the real one")
    trainer.stop()
    run.stop_syncer()
    assert_balanced(run.config.run.path, syncer)


def test_payloads_that_are_no_payloads(run_of: MakeRun, impostors: Callable[..., Impostor]) -> None:
    """W-15: Zip bombs and frames of 8 MB as chunks of nothing: they are dropped, and nothing unpacks them."""
    run = run_of()
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: syncer.machine.rounds >= 2, "two rounds")
    crash(run)
    impostor = impostors(run.config.net.port)
    run.until(lambda: bool(impostor.peers[Road.CONTROL]), "the learner's word")
    bomb = zip_bomb()
    for number in range(20):
        header = encode(Chunk(transfer=f"u/{number}", index=0, checksum=checksums_of(bomb, 2**20)[0]))
        impostor._send(Road.BULK_CAST, [header, bomb])
        impostor._send(Road.BULK_CAST, [header, bytes(2**23)])
        impostor._send(Road.BULK_CAST, [bomb])
    transfers = node_of(trainer)._transfers
    steps = trainer.steps
    run.until(lambda: trainer.steps > steps + 50, "steps meanwhile")
    assert transfers._early.nbytes <= EARLY_MAX_BYTES
    impostor.close()
    second = start_again(run)
    run.until(lambda: second.machine.rounds >= 4, "rounds of the real one")
