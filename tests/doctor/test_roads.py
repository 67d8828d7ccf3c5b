"""How the road is judged by what was measured of it."""

import pytest

from tests.doctor.parts import bad, need
from zdiloco.doctor.dial import Link, Met, Port
from zdiloco.doctor.finding import Side, Verdict
from zdiloco.doctor.roads import Place, judge_link, judge_ports, judge_round_trip, rtt_of
from zdiloco.node.sockets import Road

THERE, WARN, FAIL = Side.THERE, Verdict.WARN, Verdict.FAIL
PLACE = Place(host="10.0.0.5", first=5700, file="run.toml")
LINK = Link(up_bytes_s=1e8, down_bytes_s=1e8, mtu=1500, device="eth0")
NEED = need(up_bytes_s=1e6, down_bytes_s=2e6)


def ports(*met: Met) -> list[Port]:
    return [
        Port(road=road, port=5700 + number, met=each, rtt_s=0.01 * (number + 1) if each is Met.DOCTOR else None)
        for number, (road, each) in enumerate(zip(Road, met, strict=True))
    ]


def test_four_good_ports_are_four_good_findings() -> None:
    good = ports(*[Met.DOCTOR] * 4)
    assert [finding.verdict for finding in judge_ports(good, PLACE)] == [Verdict.OK] * 4
    assert rtt_of(good) == 0.01


def test_where_nobody_listens_at_all_that_is_one_finding_and_no_failure() -> None:
    (finding,) = judge_ports(ports(*[Met.REFUSED] * 4), PLACE)
    assert (finding.check, finding.verdict) == ("partner", WARN)
    assert finding.fix == "zdiloco doctor run.toml --listen (on 10.0.0.5)"
    assert rtt_of(ports(*[Met.REFUSED] * 4)) is None


@pytest.mark.parametrize("met", [Met.REFUSED, Met.LOST, Met.UNREACHABLE, Met.MUTE, Met.FOREIGN])
def test_one_port_that_is_not_open_is_a_failure_that_names_it(met: Met) -> None:
    found = judge_ports(ports(Met.DOCTOR, met, Met.DOCTOR, Met.DOCTOR), PLACE)
    (finding,) = [finding for finding in found if finding.verdict is FAIL]
    assert finding.measured.startswith(f"bulk 10.0.0.5:5701: {met}")
    assert "5700:5703" in finding.fix


def test_four_ports_without_an_answer_are_four_failures() -> None:
    assert [finding.verdict for finding in judge_ports(ports(*[Met.LOST] * 4), PLACE)] == [FAIL] * 4


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, {}),
        ({"up_bytes_s": 1.4e6}, {"uplink": WARN}),
        ({"up_bytes_s": 0.9e6}, {"uplink": FAIL}),
        ({"down_bytes_s": 2.9e6}, {"downlink": WARN}),
        ({"down_bytes_s": 0.0}, {"downlink": FAIL}),
        ({"mtu": 576}, {"mtu": WARN}),
        ({"mtu": 1280}, {}),
        ({"passes": 1220, "up_bytes_s": None, "down_bytes_s": None}, {"black hole": FAIL}),
        ({"why": "not sent", "up_bytes_s": None, "down_bytes_s": None, "mtu": 576}, {"mtu": WARN}),
        ({"passes": 0, "up_bytes_s": None, "down_bytes_s": None}, {"uplink": FAIL, "downlink": FAIL}),
    ],
)
def test_a_link_is_judged_by_what_the_run_needs(changes: dict[str, object], wanted: dict[str, Verdict]) -> None:
    link = Link(**{**{name: getattr(LINK, name) for name in LINK.__slots__}, **changes})
    found = judge_link(link, NEED)
    assert bad(found) == {(check, THERE): verdict for check, verdict in wanted.items()}
    assert len(found) == 4


def test_where_nothing_was_sent_that_is_said() -> None:
    findings = judge_link(Link(mtu=1500, why="not sent"), NEED)
    assert [finding.measured for finding in findings] == ["not sent", "not sent", "1500 bytes", "not sent"]


def test_a_longer_period_is_the_fix_of_a_slow_link() -> None:
    """A need of 1 MB/s and a half of that: one and a half times as much room wants three times the period."""
    link = Link(up_bytes_s=5e5, down_bytes_s=1e8, mtu=1500)
    assert [finding.fix for finding in judge_link(link, NEED) if finding.fix] == ["--set sync.sync_period=72"]


def test_each_learner_behind_a_relay_has_a_window_of_its_own() -> None:
    four = need(up_bytes_s=4e6, down_bytes_s=1e9, lanes=4)
    assert judge_round_trip(2.0, four).verdict is Verdict.OK
    assert judge_round_trip(2.0, need(up_bytes_s=4e6, down_bytes_s=0.0)).verdict is WARN


def test_what_was_not_measured_is_not_called_good() -> None:
    assert {finding.verdict for finding in judge_link(None, NEED)} == {Verdict.UNKNOWN}
    assert judge_round_trip(None, NEED).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("rtt_s", "verdict"), [(0.05, Verdict.OK), (5.0, WARN), (9.0, FAIL)])
def test_a_window_in_each_round_trip_must_be_enough(rtt_s: float, verdict: Verdict) -> None:
    """8 MiB, for 1 MB/s."""
    wanted = need(up_bytes_s=1e6, down_bytes_s=1e6)
    finding = judge_round_trip(rtt_s, wanted)
    assert finding.verdict is verdict
    if verdict is FAIL:
        assert finding.fix == "--set net.window_bytes=33554432"
