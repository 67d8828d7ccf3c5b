"""How TCP is judged by its figures; and that they are read where they lie."""

import socket
from pathlib import Path

import pytest

from tests.doctor.parts import bad, need
from zdiloco.doctor.finding import Side, Verdict
from zdiloco.doctor.kernel import Kernel, judge_kernel, mbit, read_kernel

GOOD = Kernel(congestion="bbr", send_bytes=2**25, receive_bytes=2**25, slow_start_after_idle=True)
TEN_MB_S = need(up_bytes_s=1e7, down_bytes_s=1e7, burst_bytes=1e6)
HERE, OK, WARN, FAIL = Side.HERE, Verdict.OK, Verdict.WARN, Verdict.FAIL


def kernel(**changes: object) -> Kernel:
    return Kernel(**{**{name: getattr(GOOD, name) for name in GOOD.__slots__}, **changes})


@pytest.mark.parametrize(
    ("changes", "rtt_s", "wanted"),
    [
        ({}, 0.08, {}),
        ({"congestion": "cubic", "slow_start_after_idle": False}, 0.08, {"congestion": WARN}),
        ({"congestion": "cubic", "slow_start_after_idle": False}, 0.001, {}),
        ({"congestion": "cubic"}, 0.08, {"congestion": WARN, "idle": WARN}),
        ({"congestion": "cubic"}, 0.001, {}),
        ({"send_bytes": 1_500_000}, 0.08, {"send buffer": FAIL}),  # 0.75 MB a trip: 9.4 MB/s
        ({"send_bytes": 1_700_000}, 0.08, {"send buffer": WARN}),  # 10.6 MB/s
        ({"send_bytes": 3_300_000}, 0.08, {}),
        ({"send_bytes": 1_500_000}, 0.02, {}),
        ({"receive_bytes": 1_500_000}, 0.08, {"receive buffer": FAIL}),
        ({"receive_bytes": 100_000}, 0.0001, {}),
    ],
)
def test_what_is_said_depends_on_the_length_of_the_road(
    changes: dict[str, object], rtt_s: float, wanted: dict[str, Verdict]
) -> None:
    found = judge_kernel(kernel(**changes), HERE, TEN_MB_S, rtt_s)
    assert bad(found) == {(check, HERE): verdict for check, verdict in wanted.items()}
    assert len(found) == 4


def test_there_the_other_buffer_is_the_one_that_counts() -> None:
    """Much goes up, little comes down: here it is sent, there received."""
    much_up = need(up_bytes_s=1e7, down_bytes_s=1.0)
    small = kernel(send_bytes=10**6, receive_bytes=10**6)
    assert bad(judge_kernel(small, HERE, much_up, 0.08)) == {("send buffer", HERE): FAIL}
    assert bad(judge_kernel(small, Side.THERE, much_up, 0.08)) == {("receive buffer", Side.THERE): FAIL}


def test_the_fix_is_enough() -> None:
    (finding,) = (f for f in judge_kernel(kernel(send_bytes=10**6), HERE, TEN_MB_S, 0.08) if f.fix)
    assert finding.fix == 'sudo sysctl -w net.ipv4.tcp_wmem="4096 16384 4194304"'
    assert bad(judge_kernel(kernel(send_bytes=4194304), HERE, TEN_MB_S, 0.08)) == {}


def test_several_connections_share_what_is_sent() -> None:
    four = need(up_bytes_s=1e7, down_bytes_s=1e7, ups=4)
    assert bad(judge_kernel(kernel(send_bytes=10**6), HERE, four, 0.08)) == {}
    assert bad(judge_kernel(kernel(receive_bytes=10**6), HERE, four, 0.08)) == {("receive buffer", HERE): FAIL}


def test_what_is_not_known_is_not_called_good() -> None:
    for found in (judge_kernel(Kernel(), HERE, TEN_MB_S, 0.08), judge_kernel(GOOD, HERE, TEN_MB_S, None)):
        assert {finding.verdict for finding in found} == {Verdict.UNKNOWN}


def test_it_is_read_from_its_files(tmp_path: Path) -> None:
    assert read_kernel(place=tmp_path) == Kernel()
    for name, text in {
        "tcp_slow_start_after_idle": "0\n", "tcp_congestion_control": "cubic\n", "tcp_wmem": "4096\t16384\t4194304\n",
        "tcp_rmem": "what is this\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    assert read_kernel(place=tmp_path) == Kernel(congestion="cubic", send_bytes=4194304, slow_start_after_idle=False)


@pytest.mark.net
@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="only Linux tells")
def test_the_congestion_control_is_that_of_the_connection() -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        assert read_kernel(sock).congestion == "reno"


def test_rates_are_said_as_people_say_them() -> None:
    assert (mbit(1.25e6), mbit(1.25e9)) == ("10 Mbit/s", "10 Gbit/s")
