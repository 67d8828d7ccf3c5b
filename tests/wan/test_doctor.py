"""A doctor on real links between namespaces: a sound one has no faults, and each that is planted is found, alone.

Planted for real, one at a time: a port that is blocked, buffers, congestion control, slow start after idle, MTU, a hole
for large packets, a rate, and a cgroup's memory.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.accept.stage import LIMIT_S, ROOT
from tests.doctor.parts import bad, need
from tests.net.namespaces import ip
from tests.wan.lab import PORT, Shaped
from zdiloco.doctor.dial import Dialled
from zdiloco.doctor.examine import Patient, Probes, examine
from zdiloco.doctor.far import FarSide
from zdiloco.doctor.finding import Finding, Side, Verdict
from zdiloco.node.params import NetParams

pytestmark = [pytest.mark.net, pytest.mark.wan, pytest.mark.slow]
HERE, THERE, WARN, FAIL = Side.HERE, Side.THERE, Verdict.WARN, Verdict.FAIL
MBIT_S, WAY_S = 50.0, 0.02
NEED = need(parameters=1e6, up_bytes_s=5e5, down_bytes_s=5e5, burst_bytes=1e6)
"""4 Mbit/s each way, where there are 50 and 40 ms there and back."""
QUICK = Probes(speed=lambda need: None)


def sysctl(name: str, setting: str) -> None:
    done = subprocess.run(
        ["ip", "netns", "exec", name, "sysctl", "-w", setting], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def link(regions_of: Callable[[int], Shaped]) -> Shaped:
    """Two regions on a sound link: what a fault is to be told from."""
    regions = regions_of(2)
    regions.links[0].both(mbit_s=MBIT_S, delay_s=WAY_S)
    regions.congestion("bbr")
    for name in regions.names:
        for key in ("tcp_rmem", "tcp_wmem"):
            sysctl(name, f"net.ipv4.{key}=4096 131072 16777216")
        sysctl(name, "net.ipv4.tcp_slow_start_after_idle=0")
    return regions


@contextmanager
def listening(regions: Shaped) -> Iterator[FarSide]:
    """A far side in region 0."""
    net = NetParams(listen="0.0.0.0", port=PORT, insecure=True)
    far = regions.asked(0, lambda: FarSide(net))
    thread = threading.Thread(target=regions.inside(0, lambda: far.serve(LIMIT_S)), name="far")
    thread.start()
    try:
        yield far
    finally:
        far.stop()
        thread.join(LIMIT_S)


def examined(regions: Shaped, folder: Path, **dials: object) -> list[Finding]:
    """What a doctor in region 1 finds."""
    to = Dialled(host="10.77.1.1", port=PORT, **{"timeout_s": 3.0, "most_bytes": 2**23, "most_s": 2.0, **dials})
    patient = Patient(need=NEED, run_dir=folder, dials=to)
    with listening(regions):
        return regions.asked(1, lambda: examine(patient, QUICK))


def test_a_sound_link_has_no_faults(link: Shaped, tmp_path: Path, say: Callable[[str], None]) -> None:
    findings = examined(link, tmp_path)
    assert bad(findings) == {}
    told = {finding.check: finding for finding in findings if finding.side is THERE}
    up, down, trip = (told[check].value for check in ("uplink", "downlink", "round trip"))
    say(f"a link of 50 Mbit/s and 40 ms: {up * 8e-6:.3g} up, {down * 8e-6:.3g} down, {trip * 1e3:.3g} ms")
    assert 20 < up * 8e-6 < 60
    assert 20 < down * 8e-6 < 60
    assert 0.04 <= trip < 0.08


@pytest.mark.parametrize("number", range(4))
def test_a_blocked_port_is_found(number: int, link: Shaped, tmp_path: Path) -> None:
    """What it would answer vanishes, as in a firewall that drops."""
    ip("-n", link.names[0], "rule", "add", "ipproto", "tcp", "sport", str(PORT + number), "blackhole")
    findings = examined(link, tmp_path, timeout_s=1.0)
    assert bad(findings) == {("port", THERE): FAIL}
    assert f":{PORT + number}: no answer (within 1 s)" in next(f.measured for f in findings if f.verdict is FAIL)


def test_small_buffers_are_found_on_either_side(link: Shaped, tmp_path: Path) -> None:
    """32 KB: 16 KB in 40 ms are 0.4 MB/s, where 0.5 are needed. The road is then as slow as that."""
    sysctl(link.names[1], "net.ipv4.tcp_wmem=4096 16384 32768")
    found = bad(examined(link, tmp_path))
    assert found.pop(("send buffer", HERE)) is FAIL
    assert set(found) <= {("uplink", THERE)}
    sysctl(link.names[1], "net.ipv4.tcp_wmem=4096 16384 16777216")
    sysctl(link.names[0], "net.ipv4.tcp_rmem=4096 16384 32768")
    found = bad(examined(link, tmp_path))
    assert found.pop(("receive buffer", THERE)) is FAIL
    assert set(found) <= {("uplink", THERE)}


def test_a_congestion_control_that_loss_slows_is_found_and_slow_start_with_it(link: Shaped, tmp_path: Path) -> None:
    link.congestion("reno")
    assert bad(examined(link, tmp_path)) == {("congestion", HERE): WARN, ("congestion", THERE): WARN}
    sysctl(link.names[1], "net.ipv4.tcp_slow_start_after_idle=1")
    assert bad(examined(link, tmp_path)) == {
        ("congestion", HERE): WARN, ("congestion", THERE): WARN, ("idle", HERE): WARN,
    }  # fmt: skip


def test_a_small_mtu_is_found(link: Shaped, tmp_path: Path) -> None:
    ip("-n", link.names[1], "link", "set", link.links[0].device, "mtu", "600")
    findings = examined(link, tmp_path)
    assert bad(findings) == {("mtu", THERE): WARN}
    assert [f.fix for f in findings if f.fix] == [f"sudo ip link set dev {link.links[0].device} mtu 1500"]


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_hole_for_large_packets_is_found(way: str, link: Shaped, tmp_path: Path) -> None:
    """What is longer than 1300 bytes vanishes one way, and nobody says so."""
    link.links[0].shaped(**{way: {"largest": 1300}})
    findings = examined(link, tmp_path)
    assert bad(findings) == {("black hole", THERE): FAIL}
    assert "segments of 1220 bytes" in next(f.measured for f in findings if f.verdict is FAIL)


def test_a_slow_link_is_found(link: Shaped, tmp_path: Path) -> None:
    """2 Mbit/s up, where 4 are needed."""
    link.links[0].shaped(up={"mbit_s": 2.0, "queue_s": 1.0})
    findings = examined(link, tmp_path)
    assert bad(findings) == {("uplink", THERE): FAIL}
    (fix,) = [finding.fix for finding in findings if finding.fix]
    assert 60 < int(fix.rpartition("=")[2]) < 200  # of 24 steps, for a half of what is needed and half as much again


def groups() -> Path | None:
    """Where a cgroup that bounds memory can be made."""
    for place in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        probe = place / f"zdiloco-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError:
            continue
        bound = next(
            (probe / name for name in ("memory.max", "memory.limit_in_bytes") if (probe / name).exists()), None
        )
        if bound is not None:
            bound.write_text("2000000000")
            return probe
        probe.rmdir()
    return None


def test_too_little_memory_in_its_cgroup_is_found() -> None:
    """2 GB, for a model of 100 million parameters on CPU; the same with a model of a million fits."""
    group = groups()
    reason = "no cgroup with a bound of memory can be made here"
    if group is None and os.environ.get("CI"):
        pytest.fail(reason)
    if group is None:
        pytest.skip(reason)
    words = [sys.executable, "-m", "zdiloco.cli", "doctor", "--json", "--timeout", "0.5", "--set", "net.port=5990"]
    try:
        verdicts = []
        for parameters in ("1e8", "1e6"):
            done = subprocess.run(
                ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *words, "--parameters", parameters],
                cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            (memory,) = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "memory"]
            verdicts.append((memory["verdict"], done.returncode))
            assert "cgroup" in memory["measured"]
        assert verdicts == [("fail", 1), ("ok", 0)]
    finally:
        group.rmdir()
