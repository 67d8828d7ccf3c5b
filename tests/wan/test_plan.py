"""What `zdiloco plan` says beside what a run measured, on three profiles of the lab: bytes of bodies and of packets,
times of answers, and from call to call."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S
from tests.net.namespaces import ip
from tests.wan.lab import Lab

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.wan, pytest.mark.timeout(SLOW_MACHINE_S)]
PARAMETERS, FRAGMENTS = 6_000_000, 6
PACE_S, MEASURED_S = 0.05, 45.0
LINK = ("--gbit", "--rtt-ms", "--loss")
BYTES_OFF, FLIGHT_OFF = 0.05, 0.20


@pytest.mark.long
@pytest.mark.parametrize(
    ("profile", "region", "link"),
    [
        pytest.param("one-link-200mbit-80ms", 1, (0.2, 80, 0.0), id="one link"),
        pytest.param("four-regions-40mbit", 3, (0.04, 100, 0.001), id="south"),
        pytest.param("us-4-region", 3, (0.05, 104, 0.0001), id="europe"),
    ],
)
def test_a_plan_is_what_a_run_measures(
    lab_on: Callable[[str], Lab], say: Callable[[str], None], profile: str, region: int,
    link: tuple[float, float, float],
) -> None:  # fmt: skip
    """Bytes within 5 %, those of packets on the link's own counters too; from a call to its answer, and to the next
    call, within 20 %. The first link is not full, the others are to carry more than they can."""
    lab = lab_on(profile)
    lab.write(sync={"sync_period": 24, "num_fragments": FRAGMENTS}, learner={"save_every_s": 0.0})
    syncer = lab.sync()
    lab.until(lab.status, "the syncer answers", syncer)
    learner = lab.ballast(region, "far", PARAMETERS, PACE_S)
    lab.until(lambda: lab.rounds() >= 2 * FRAGMENTS, "two turns of rounds", syncer, learner)
    began, before = lab.rounds(), sent_bytes(lab.regions.names[region])
    ends = time.monotonic() + MEASURED_S
    lab.until(lambda: time.monotonic() > ends, "a while of rounds", syncer, learner)
    turns, sent = (lab.rounds() - began) / FRAGMENTS, sent_bytes(lab.regions.names[region]) - before
    lab.end(learner, syncer)
    words = ["plan", str(lab.toml), "--json", "--parameters", str(PARAMETERS), "--learners", "1"]
    words += [word for name, value in zip(LINK, link, strict=True) for word in (name, str(value))]
    planned = answered(lab, *words, "--step-time", str(PACE_S))
    packets = planned["flows"]["r0"][0]["packets_bytes"] / (sent / turns)
    beside = {each["what"]: each for each in answered(lab, *words, "--against", str(lab.run_dir))["against"]}
    told = [f"{what} {each['ratio']:.3f}" for what, each in beside.items() if each["ratio"] is not None]
    say(f"{profile}: planned ÷ measured: {', '.join(told)}; bytes of packets {packets:.3f}")
    assert abs(beside["bytes of a contribution"]["ratio"] - 1) <= BYTES_OFF
    assert abs(packets - 1) <= BYTES_OFF
    assert abs(beside["answer"]["ratio"] - 1) <= FLIGHT_OFF
    assert abs(beside["from call to call"]["ratio"] - 1) <= FLIGHT_OFF


def sent_bytes(namespace: str) -> int:
    """What has left a region so far, by the counters of its links."""
    links = json.loads(ip("-n", namespace, "-s", "-j", "link"))
    return sum(link["stats64"]["tx"]["bytes"] for link in links if link["ifname"] != "lo")


def answered(lab: Lab, *words: str) -> dict[str, Any]:
    """What `zdiloco` prints as JSON."""
    command = lab.command(*words, label="plan")
    assert command.wait() == 0, command.errors
    found: dict[str, Any] = json.loads(command.output)
    return found
