"""What a relay adds to the way of an update: the same publisher, heard directly and through a relay process."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.cli.test_processes import Processes, processes, said_until  # noqa: F401 - a fixture
from tests.node.relay_stage import Upstream
from zdiloco.config import RunConfig, to_toml
from zdiloco.core.messages import Beat
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.sockets import Road, dialling, identity_of, new_incarnation
from zdiloco.units import Epoch, MemberKey
from zdiloco.wire.outbox import ChunkOut

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow]
TRIES, CHUNKS, LIMIT_MS = 40, 8, 20_000
ROADS = (Road.CONTROL_CAST, Road.BULK_CAST)
EAR = identity_of(MemberKey("ear", new_incarnation()))


class Ears:
    """The same broadcasts, heard at two places."""

    def __init__(self, context: Any, *nets: NetParams) -> None:
        self.places = [
            {road: dialling(context, road, net, EAR) for road in ROADS} for net in nets
        ]

    def hear(self, road: Road, count: int) -> list[list[float]]:
        """When each of the next `count` messages came, at each place, in seconds."""
        poller, times = zmq.Poller(), {place[road]: list[float]() for place in self.places}
        for socket in times:
            poller.register(socket, zmq.POLLIN)
        while any(len(heard) < count for heard in times.values()):
            events = poller.poll(LIMIT_MS)
            assert events, "nothing comes"
            for socket, _ in events:
                socket.recv_multipart(copy=False)
                times[socket].append(time.perf_counter())
        return list(times.values())

    def until_both(self, say: Callable[[], None]) -> None:
        """Until what is said is heard at both places, on both roads; then all of it is passed over."""
        silent = {socket for place in self.places for socket in place.values()}
        ends = time.monotonic() + LIMIT_MS / 1000
        while silent:
            assert time.monotonic() < ends
            say()
            silent = {socket for socket in silent if not socket.poll(20)}
        for socket in [socket for place in self.places for socket in place.values()]:
            while socket.poll(200):
                socket.recv_multipart()

    def close(self) -> None:
        for place in self.places:
            for socket in place.values():
                socket.close(0)


def test_what_a_relay_adds_to_an_update(
    tmp_path: Path, zctx: Any, free_ports: Callable[[int], int], processes: Processes, say: Callable[[str], None]  # noqa: F811
) -> None:  # fmt: skip
    net, relay = NetParams(port=free_ports(4)), RelayParams(port=free_ports(4))
    (tmp_path / "run.toml").write_text(to_toml(RunConfig(net=net, relay=relay)))
    said_until(processes.start("relay", str(tmp_path / "run.toml")), "relay serves listen=")
    upstream, ears = Upstream(zctx, net), Ears(zctx, net, NetParams(port=relay.port))
    beat = Beat(epoch=Epoch(1, 7), open_rounds=(), versions=(), stable=(), progress=0.0)
    chunks = [ChunkOut(None, "x", index, 0, memoryview(bytes(2**20))) for index in range(CHUNKS)]

    def speak() -> None:
        upstream.roads.cast(beat)
        upstream.roads.cast_chunks(chunks[:1])

    added: dict[str, list[float]] = {"a word": [], "a chunk of 1 MiB": [], "an update of 8 MiB": []}
    try:
        ears.until_both(speak)
        for _ in range(TRIES):
            upstream.roads.cast(beat)
            near, far = ears.hear(Road.CONTROL_CAST, 1)
            added["a word"].append(far[0] - near[0])
            for name, count in (("a chunk of 1 MiB", 1), ("an update of 8 MiB", CHUNKS)):
                upstream.roads.cast_chunks(chunks[:count])
                near, far = ears.hear(Road.BULK_CAST, count)
                added[name].append(far[-1] - near[-1])
    finally:
        ears.close()
        for socket in upstream.roads.sockets.values():
            socket.close(0)
    for name, times in added.items():
        median_ms, worst_ms = statistics.median(times) * 1000, sorted(times)[int(0.9 * TRIES)] * 1000
        say(f"a relay adds to {name}: {median_ms:.2f} ms, nine in ten at most {worst_ms:.2f} ms")
