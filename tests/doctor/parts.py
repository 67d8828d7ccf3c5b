"""What tests of the doctor share: what a run needs, a far side at work, and findings by their names."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from zdiloco.doctor.dial import Dialled
from zdiloco.doctor.far import FarSide
from zdiloco.doctor.finding import Finding, Side, Verdict
from zdiloco.doctor.needs import Need, Role, need_of
from zdiloco.node.params import NetParams
from zdiloco.plan.answer import Asked
from zdiloco.plan.model import of_parameters
from zdiloco.plan.params import Fleet, Region, Settings

LIMIT_S = 60.0
BAD = (Verdict.WARN, Verdict.FAIL)


def need(role: Role = Role.LEARNER, parameters: float = 1e6, learners: int = 2, **changes: object) -> Need:
    """What a role needs of a run with the default settings, perhaps with some figures replaced."""
    region = Region(name="here", learners=learners, step_s=1.0, gbit_s=1e6, relay=role is Role.RELAY)
    model = of_parameters(parameters, 24)
    return replace(
        need_of(role, Asked(fleet=Fleet(regions=(region,)), model=model, settings=Settings())), **changes
    )  # fmt: skip


def bad(findings: Sequence[Finding]) -> dict[tuple[str, Side], Verdict]:
    """What is to be mended, by check and side."""
    return {(finding.check, finding.side): finding.verdict for finding in findings if finding.verdict in BAD}


@contextmanager
def far_side(port: int, **options: object) -> Iterator[FarSide]:
    """A doctor that listens on loopback."""
    with serving(FarSide(NetParams(port=port), **options)) as far:
        yield far


@contextmanager
def serving(far: FarSide) -> Iterator[FarSide]:
    """Let it serve on a thread of its own."""
    thread = threading.Thread(target=far.serve, args=(LIMIT_S,), name="far")
    thread.start()
    try:
        yield far
    finally:
        far.stop()
        thread.join(LIMIT_S)


def dialled(port: int, **options: object) -> Dialled:
    """Dial loopback, and measure with little."""
    return Dialled(host="127.0.0.1", port=port, **{"timeout_s": 10.0, "most_bytes": 2**20, **options})


@contextmanager
def talker(port: int, says: bytes) -> Iterator[None]:
    """Somebody else at a port: says this to whoever comes, and nothing more; hangs up at the end."""
    stopped, held = threading.Event(), []
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(0.1)

        def serve() -> None:
            while not stopped.is_set():
                try:
                    held.append(server.accept()[0])
                    held[-1].sendall(says)
                except OSError:
                    continue

        thread = threading.Thread(target=serve, name="talker")
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(LIMIT_S)
            for sock in held:
                sock.close()
