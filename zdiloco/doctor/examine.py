"""The whole examination of one machine for one role, and of the road to whoever it dials.

Rule: probes are fields of `Probes`, so that a test can say what they would have read; judgements are those of the other
files. What nobody measured is said to be unknown.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from zdiloco.doctor.clock import Skew, judge_clock, skew_of, wall
from zdiloco.doctor.dial import Dialled, Link, Met, Port, dial_port, glance, measure_link
from zdiloco.doctor.disk import Disk, judge_disk, read_disk
from zdiloco.doctor.far import bound
from zdiloco.doctor.finding import Finding, Measured, Side, Verdict, found
from zdiloco.doctor.host import Host, judge_host, read_host
from zdiloco.doctor.kernel import Kernel, judge_kernel, read_kernel
from zdiloco.doctor.living import About, ask
from zdiloco.doctor.needs import Need, together
from zdiloco.doctor.roads import ALONE, ANSWERS, Place, judge_link, judge_ports, judge_round_trip, rtt_of
from zdiloco.doctor.speed import Speed, judge_speed, read_speed
from zdiloco.doctor.versions import Versions, judge_libzmq, judge_versions, own_versions
from zdiloco.errors import ConfigError, MalformedFrame
from zdiloco.node.clock import monotonic
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road


@dataclass(frozen=True, kw_only=True, slots=True)
class Patient:
    """Who is examined. `binds`: the ports that the role binds, with the key that names them; `dials`: whom it dials;
    `rtt_s`: the round trip where it cannot be measured; `processes`: like this one, on this machine."""

    need: Need
    run_dir: Path
    dials: Dialled | None = None
    binds: NetParams | None = None
    bind_key: str = "net.port"
    file: str = "RUN.toml"
    rtt_s: float | None = None
    processes: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Probes:
    """What is read from the world."""

    port: Callable[[Dialled, Road], Port] = dial_port
    link: Callable[[Dialled, float], Link] = measure_link
    glance: Callable[[Dialled, str], Link] = glance
    ask: Callable[[NetParams, float], About] = ask
    kernel: Callable[[], Kernel] = read_kernel
    host: Callable[[int], Host] = field(default=lambda threads: read_host(threads=threads))
    disk: Callable[[Path], Disk] = read_disk
    speed: Callable[[Need], Speed | None] = read_speed
    versions: Callable[[], Versions] = own_versions


@dataclass(kw_only=True, slots=True)
class _Road:
    """What was learned of the far side."""

    ports: list[Port]
    link: Link | None = None
    unmeasured: str = ALONE
    skew: Skew | None = None
    versions: Versions | None = None
    kernel: Kernel | None = None
    refused: str = ""
    findings: list[Finding] = field(default_factory=list)


def examine(patient: Patient, probes: Probes | None = None) -> list[Finding]:
    """Every finding, the road first. Raises nothing that a probe meets."""
    probes = probes or Probes()
    findings = _own_ports(patient)
    kernel, rtt_s = probes.kernel(), patient.rtt_s
    if patient.dials is not None:
        road = _dialled(patient, patient.dials, probes)
        kernel = road.link.kernel if road.link else kernel
        rtt_s = rtt_of(road.ports) or rtt_s
        findings += road.findings + _judged(road, patient, rtt_s, probes)
    findings += judge_kernel(kernel, Side.HERE, patient.need, rtt_s)
    speed = probes.speed(patient.need)
    shared = together(patient.need, patient.processes)
    findings += judge_host(probes.host(speed.threads if speed else 0), shared, patient.processes)
    findings += judge_disk(probes.disk(patient.run_dir), shared)
    return [*findings, judge_speed(speed, patient.need), judge_libzmq(probes.versions(), Side.HERE)]


def _judged(road: _Road, patient: Patient, rtt_s: float | None, probes: Probes) -> list[Finding]:
    if not any(port.met in ANSWERS for port in road.ports):
        return []
    there = road.kernel
    return [
        judge_round_trip(rtt_s, patient.need),
        *judge_link(road.link, together(patient.need, patient.processes), road.unmeasured),
        judge_clock(road.skew),
        *judge_versions(probes.versions(), road.versions, road.refused),
        *(judge_kernel(there, Side.THERE, patient.need, rtt_s) if there else []),
    ]


def _dialled(patient: Patient, to: Dialled, probes: Probes) -> _Road:
    place = Place(host=to.host, first=to.port, file=patient.file)
    try:
        socket.getaddrinfo(to.host, to.port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        said = Measured(said=f"{to.host}: {getattr(error, 'strerror', None) or error}")
        return _Road(ports=[], findings=[found("host", Side.HERE, Verdict.FAIL, said, address="ADDRESS")])
    road = _Road(ports=[probes.port(to, each) for each in Road])
    road.findings = judge_ports(road.ports, place)
    if any(port.met is Met.DOCTOR for port in road.ports):
        _doctor(road, to, probes)
    elif road.ports[0].met is Met.ZEROMQ and road.ports[1].met is Met.ZEROMQ:
        _living(road, to, probes)
    return road


def _doctor(road: _Road, to: Dialled, probes: Probes) -> None:
    """A doctor is on the other side: all can be measured."""
    first = next(port for port in road.ports if port.about)
    about = first.about
    assert about is not None
    skews = [port.skew for port in road.ports if port.skew]
    road.skew = min(skews, key=lambda skew: skew.unsure_s, default=None)
    road.versions = Versions(version=about.version, protocol=about.protocol, libzmq=about.libzmq)
    road.kernel = Kernel(
        congestion=about.congestion, send_bytes=about.send_bytes, receive_bytes=about.receive_bytes,
        slow_start_after_idle=about.slow_start_after_idle,
    )  # fmt: skip
    if road.ports[1].met is Met.DOCTOR:  # the bulk road
        try:
            road.link = probes.link(to, rtt_of(road.ports) or 0.0)
        except (OSError, MalformedFrame) as error:
            road.unmeasured = f"the measurement broke off ({str(error) or type(error).__name__})"


def _living(road: _Road, to: Dialled, probes: Probes) -> None:
    """A run is at work there: it tells who it is, and the time."""
    began = monotonic()
    about = probes.ask(replace(to.net, connect=to.host, port=to.port), to.timeout_s)
    took_s = monotonic() - began
    road.versions, road.refused = about.versions, about.refused
    with suppress(OSError):  # it has just gone: then nothing is known
        road.link = probes.glance(to, ALONE)
    if about.wall is not None:
        road.skew = skew_of(wall() - took_s, about.wall, took_s)


def _own_ports(patient: Patient) -> list[Finding]:
    """Whether the role can bind what it has to."""
    if patient.binds is None:
        return []
    net, taken = patient.binds, []
    for number in range(len(Road)):
        try:
            bound(net.listen, net.port + number).close()
        except ConfigError as error:
            taken.append(str(error))
    where = f"{net.listen}:{net.port} to {net.port + 3}"
    measured = Measured(said=taken[0] if taken else f"{where}: free")
    verdict = Verdict.FAIL if taken else Verdict.OK
    return [found("own port", Side.HERE, verdict, measured, key=patient.bind_key, port=net.port + 10)]


def failing(findings: Sequence[Finding]) -> bool:
    """Whether something will fail."""
    return any(finding.verdict is Verdict.FAIL for finding in findings)
