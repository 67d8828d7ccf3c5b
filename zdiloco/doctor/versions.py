"""What is installed here, and whether it goes with what is installed there."""

from dataclasses import dataclass

import zmq

from zdiloco.doctor.finding import Finding, Measured, Side, Verdict, found, unknown
from zdiloco.node.sockets import MIN_LIBZMQ
from zdiloco.version import VERSION
from zdiloco.wire.frames import PROTOCOL


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """Of one side. `libzmq` may be empty: not told."""

    version: str
    protocol: int
    libzmq: str = ""


def own_versions() -> Versions:
    """Those of this process."""
    return Versions(version=VERSION, protocol=PROTOCOL, libzmq=zmq.zmq_version())


def judge_libzmq(versions: Versions, side: Side) -> Finding:
    """Whether it is new enough."""
    parts = versions.libzmq.split(".")
    if not versions.libzmq or not all(part.isdigit() for part in parts):
        return unknown("libzmq", side, "it does not tell")
    old = tuple(map(int, parts)) < MIN_LIBZMQ
    return found("libzmq", side, Verdict.FAIL if old else Verdict.OK, Measured(said=versions.libzmq))


def judge_versions(here: Versions, there: Versions | None, refused: str = "") -> list[Finding]:
    """Whether both sides understand each other. `refused`: how one side has turned the other away."""
    if refused:
        return [found("protocol", Side.THERE, Verdict.FAIL, Measured(said=refused), version=here.version)]
    if there is None:
        return [unknown(check, Side.THERE, "nobody there tells") for check in ("protocol", "version", "libzmq")]
    other, unlike = there.protocol != here.protocol, there.version != here.version
    protocol = Measured(said=f"{there.protocol}, here {here.protocol}", value=there.protocol)
    version = Measured(said=f"{there.version}, here {here.version}")
    return [
        found("protocol", Side.THERE, Verdict.FAIL if other else Verdict.OK, protocol, version=here.version),
        found("version", Side.THERE, Verdict.WARN if unlike else Verdict.OK, version, version=here.version),
        judge_libzmq(there, Side.THERE),
    ]
