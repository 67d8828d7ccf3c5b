"""The whole examination on loopback: nothing is found where nothing is wrong, and each fault that is planted is.

Planted for real: blocked and foreign ports, a clock, another version, a living syncer, a folder that cannot be written.
By what a probe says: a slow disk, a slow link, buffers. In `tests/cli/test_doctor.py`: limits of a process. In
`tests/wan/test_doctor.py`: what a link and a kernel do.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doctor.parts import LIMIT_S, bad, dialled, far_side, need, serving, talker
from tests.node.test_keys import Folder
from zdiloco.config import from_tree
from zdiloco.doctor.dial import Link, measure_link
from zdiloco.doctor.disk import read_disk
from zdiloco.doctor.examine import Patient, Probes, examine, failing
from zdiloco.doctor.far import FarSide
from zdiloco.doctor.finding import Finding, Side, Verdict
from zdiloco.doctor.needs import Role
from zdiloco.doctor.versions import Versions
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.relay import RelayNode
from zdiloco.node.syncer import SyncerNode
from zdiloco.wire.frames import PROTOCOL

pytestmark = pytest.mark.net
HERE, THERE, WARN, FAIL = Side.HERE, Side.THERE, Verdict.WARN, Verdict.FAIL
Ports = Callable[[int], int]
QUICK = Probes(speed=lambda need: None)
"""All is read for real but the codec, which `test_speed.py` tries."""


def patient(port: int, folder: Path, **changes: object) -> Patient:
    return Patient(**{"need": need(), "run_dir": folder, "dials": dialled(port), "file": "run.toml", **changes})


def found(port: int, folder: Path, probes: Probes = QUICK, **far: object) -> list[Finding]:
    with far_side(port, **far):
        return examine(patient(port, folder), probes)


def test_where_nothing_is_wrong_nothing_is_found(free_ports: Ports, tmp_path: Path) -> None:
    """With every probe of its own."""
    findings = found(free_ports(4), tmp_path, Probes())
    assert bad(findings) == {}
    assert not failing(findings)
    known = {finding.check for finding in findings if finding.verdict is Verdict.OK}
    assert {"port", "uplink", "downlink", "clock", "protocol", "version", "disk speed", "codec", "threads"} <= known
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", range(4))
def test_a_blocked_port_is_found(number: int, free_ports: Ports, tmp_path: Path) -> None:
    """Planted for real: nobody listens at it any more."""
    port = free_ports(4)
    far = FarSide(NetParams(port=port))
    far._bound.pop(number).close()
    with serving(far):
        findings = examine(patient(port, tmp_path), QUICK)
    assert bad(findings) == {("port", THERE): FAIL}
    assert any(f"127.0.0.1:{port + number}: nobody listens" in finding.measured for finding in findings)


def test_a_port_of_somebody_else_is_found(free_ports: Ports, tmp_path: Path) -> None:
    port = free_ports(4)
    with talker(port, b"220 mail\r\n"):
        findings = examine(patient(port, tmp_path), QUICK)
    assert bad(findings) == {("port", THERE): FAIL}


@pytest.mark.parametrize("ahead_s", [3600.0, -3.0])
def test_another_time_is_found(ahead_s: float, free_ports: Ports, tmp_path: Path) -> None:
    """Planted as the clock of the far side."""
    findings = found(free_ports(4), tmp_path, clock=lambda: time.time() + ahead_s)
    assert bad(findings) == {("clock", THERE): WARN}
    assert not failing(findings)


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [
        (Versions(version="0.0.9", protocol=4, libzmq="4.3.5"), {("protocol", THERE): FAIL, ("version", THERE): WARN}),
        (Versions(version="0.1.0", protocol=PROTOCOL, libzmq="4.3.1"), {("libzmq", THERE): FAIL}),
    ],
)
def test_another_version_is_found(
    versions: Versions, wanted: dict[tuple[str, Side], Verdict], free_ports: Ports, tmp_path: Path
) -> None:
    """Planted as what the far side says of itself."""
    assert bad(found(free_ports(4), tmp_path, versions=versions)) == wanted


def test_a_slow_disk_is_found(free_ports: Ports, tmp_path: Path) -> None:
    """Planted as what the probe of the disk says: a hundredth of a MB a second."""
    slow = replace(QUICK, disk=lambda place: replace(read_disk(place), bytes_s=1e4))
    assert bad(found(free_ports(4), tmp_path, slow)) == {("disk speed", HERE): FAIL}


def test_a_slow_link_is_found(free_ports: Ports, tmp_path: Path) -> None:
    """Planted as what the probe of the link says: a tenth of a Mbit/s down."""

    def slow(to: object, rtt_s: float) -> Link:
        return replace(measure_link(to, rtt_s), down_bytes_s=1.25e4)

    assert bad(found(free_ports(4), tmp_path, replace(QUICK, link=slow))) == {("downlink", THERE): FAIL}


def test_a_measurement_that_breaks_off_is_no_good_one(free_ports: Ports, tmp_path: Path) -> None:
    def broken(to: object, rtt_s: float) -> Link:
        raise ConnectionResetError("Connection reset by peer")

    findings = found(free_ports(4), tmp_path, replace(QUICK, link=broken))
    assert bad(findings) == {}
    (up,) = [finding for finding in findings if finding.check == "uplink"]
    assert up.verdict is Verdict.UNKNOWN
    assert up.measured == "the measurement broke off (Connection reset by peer)"


def test_a_name_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    dials = replace(dialled(5700), host="no-such-host.invalid")
    assert bad(examine(patient(0, tmp_path, dials=dials), QUICK)) == {("host", HERE): FAIL}
    dials = replace(dials, host="a..b")
    assert bad(examine(patient(0, tmp_path, dials=dials), QUICK)) == {("host", HERE): FAIL}


def test_where_nobody_listens_the_road_is_unknown_and_nothing_fails(free_ports: Ports, tmp_path: Path) -> None:
    findings = examine(patient(free_ports(4), tmp_path), QUICK)
    assert bad(findings) == {("partner", THERE): WARN}


def test_ports_that_are_taken_are_found_and_free_ones_are_left_free(free_ports: Ports, tmp_path: Path) -> None:
    port = free_ports(4)
    sync = patient(port, tmp_path, dials=None, binds=NetParams(port=port), need=need(Role.SYNC))
    assert bad(examine(sync, QUICK)) == {}
    with socket.create_server(("127.0.0.1", port + 2)):
        findings = examine(sync, QUICK)
    assert bad(findings) == {("own port", HERE): FAIL}
    assert [finding.fix for finding in findings if finding.fix] == [f"--set net.port={port + 10}"]


@pytest.fixture
def living(request: pytest.FixtureRequest, free_ports: Ports, tmp_path: Path) -> Iterator[SyncerNode]:
    """A syncer at work; with keys where a test asks for them."""
    keys = Folder(tmp_path / "keys", "a").net if getattr(request, "param", False) else {}
    tree = {"run": {"dir": str(tmp_path / "run")}, "net": {"port": free_ports(4), **keys}}
    node = SyncerNode(from_tree(tree))
    thread = node.start()
    yield node
    with suppress(Exception):
        node.stop("the test is over")
    thread.join(LIMIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("living", [False, True], ids=["open", "keys"], indirect=True)
def test_a_living_syncer_tells_its_version_and_time_and_is_left_in_peace(living: SyncerNode, tmp_path: Path) -> None:
    port = living.settings.net.port
    findings = examine(patient(port, tmp_path, dials=dialled(port, net=replace(living.settings.net, key="a"))), QUICK)
    assert bad(findings) == {}
    told = {finding.check: finding for finding in findings}
    assert told["port"].measured.startswith(f"bulk_cast 127.0.0.1:{port + 3}: a syncer or relay")
    assert told["version"].verdict is told["protocol"].verdict is told["clock"].verdict is Verdict.OK
    assert {told[check].verdict for check in ("uplink", "downlink", "black hole")} == {Verdict.UNKNOWN}
    assert told["mtu"].verdict is told["congestion"].verdict is Verdict.OK
    assert living.roads.strangers == {}


def test_a_living_relay_tells_about_itself_though_its_syncer_is_away(free_ports: Ports, tmp_path: Path) -> None:
    port = free_ports(4)
    relay = RelayNode(NetParams(port=free_ports(4)), RelayParams(port=port))
    thread = relay.start()
    try:
        findings = examine(patient(port, tmp_path), QUICK)
    finally:
        relay.stop("the test is over")
        thread.join(LIMIT_S)
    assert bad(findings) == {}
    told = {finding.check: finding.verdict for finding in findings}
    assert told["version"] is told["protocol"] is told["clock"] is Verdict.OK


def test_a_living_syncer_of_another_protocol_is_found(
    living: SyncerNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted for real: what we say carries another number, and it refuses us."""
    from zdiloco.wire import encoding

    whole = encoding.pack_header
    monkeypatch.setattr(encoding, "pack_header", lambda header: whole({**header, "v": 99}))
    findings = examine(patient(living.settings.net.port, tmp_path), QUICK)
    assert bad(findings) == {("protocol", THERE): FAIL}
