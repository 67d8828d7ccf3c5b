"""Four regions at 40 Mbit/s and a small model: a fifth learner joins, a region is cut off and heals, the loss falls,
and the picture shows who was where and when. All of it within the limit of an ordinary test, four minutes.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.accept.stage import Child
from tests.wan.lab import Lab
from tests.wan.put_up import PutUp
from zdiloco.demo.learner_log import losses_of
from zdiloco.strip import Chart, Strip, chart_of
from zdiloco.trace import read_trace

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.wan, pytest.mark.slow]
PROFILE = "four-regions-40mbit"
FIRST = {"east-a": "east", "hub-a": "hub", "north-a": "north", "south-a": "south"}
FIFTH, CUT_OFF = "south-b", "south"
WHERE = {**FIRST, FIFTH: CUT_OFF}
AWAY = [name for name, region in WHERE.items() if region == CUT_OFF]
HERE = [name for name, region in WHERE.items() if region != CUT_OFF]
ROUNDS = 12
"""Three of each fragment."""
SECTIONS: dict[str, dict[str, Any]] = {
    "sync": {"min_quorum": 2, "beat_every_s": 0.3, "suspect_after_s": 1.5, "gone_after_s": 3.0},
    "learner": {"silent_after_s": 1.5, "answer_timeout_s": 1.0},
    "net": {"stall_s": 1.0},
    "task": {"warmup_fraction": 0.0},
}  # fmt: skip
"""As patient as a busy machine wants, and no more; the run has no target, so the rate does not wait for one."""
SLOWDOWN = 10.0
MOST_OF_BEGIN = 0.5
"""What the loss of the end may be of that of the begin."""


class Fleet:
    """The run, and its moments: seconds of the monotonic clock, which is also the journal's."""

    def __init__(self, lab: Lab) -> None:
        assert isinstance(lab.regions, PutUp)
        self.lab, self.put_up = lab, lab.regions
        self.numbers = {each.name: number for number, each in enumerate(self.put_up.state.regions)}
        self.learners: dict[str, Child] = {}
        self.at: dict[str, float] = {}
        lab.write(**SECTIONS)
        self.syncer = lab.sync()
        self.until(lab.status, "the syncer answers")

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for it, and note the moment; everybody must live meanwhile."""
        self.lab.until(condition, what, self.syncer, *self.learners.values())
        self.at[what] = time.monotonic()

    def join(self, name: str) -> None:
        """A learner starts in its region, and says that it is there."""
        options = ("--slowdown", str(SLOWDOWN), "--set", f"learner.region={WHERE[name]}")
        self.learners[name] = self.lab.learner_in(self.numbers[WHERE[name]], name, *options)

    def more_rounds(self, what: str) -> None:
        """Some rounds go by."""
        rounds = self.lab.rounds() + ROUNDS
        self.until(lambda: self.lab.rounds() >= rounds, what)

    def merged(self, names: list[str], tokens: dict[str, float], what: str) -> None:
        """So much of each is merged, and all of them are live."""

        def are() -> bool:
            members = {each["name"]: each for each in self.lab.status().get("learners", ())}
            mine = [members.get(name, {}) for name in names]
            enough = all(each.get("merged_tokens", 0) >= tokens[each["name"]] for each in mine if each)
            return all(each.get("state") == "live" for each in mine) and enough

        self.until(are, what)

    def loss(self, label: str) -> float:
        """What `zdiloco eval` says of the newest checkpoint."""
        command = self.lab.command("eval", str(self.lab.toml), "--json", label=label)
        assert command.wait() == 0, command.errors
        return float(json.loads(command.output)["loss"])


def play(fleet: Fleet) -> float:
    """The story; returns the loss of its begin."""
    lab = fleet.lab
    fleet.join("hub-a")
    fleet.until(lambda: lab.status().get("phase") == "running", "the run begins")
    loss = fleet.loss("eval-begin")
    for name in FIRST:
        if name != "hub-a":
            fleet.join(name)
    fleet.merged([*FIRST], dict.fromkeys(FIRST, 1.0), "four are merged")
    fleet.join(FIFTH)
    fleet.merged([*WHERE], dict.fromkeys(WHERE, 1.0), "the fifth is merged")
    assert {each["name"]: each["region"] for each in lab.status()["learners"]} == WHERE
    fleet.put_up.partition(CUT_OFF)
    fleet.at["cut"] = time.monotonic()
    fleet.until(lambda: all(lab.member(name).get("state") == "gone" for name in AWAY), "they are gone")
    trained = {name: lab.steps(name) for name in AWAY}
    fleet.more_rounds("nothing of them is left")
    fleet.more_rounds("rounds without them")
    fleet.until(lambda: all(lab.steps(name) > trained[name] for name in AWAY), "they train on")
    tokens = {name: float(sum(each.trained_tokens for each in lab.counters(name))) for name in AWAY}
    fleet.at["heals"] = time.monotonic()
    fleet.put_up.heal()
    fleet.merged(AWAY, tokens, "what they trained meanwhile is merged")
    fleet.more_rounds("rounds of all")
    lab.end(*fleet.learners.values(), fleet.syncer)
    return loss


def test_a_fifth_joins_a_region_is_cut_off_and_heals_and_the_picture_shows_it(
    lab_on: Callable[[str], Lab], say: Callable[[str], None]
) -> None:
    began = time.monotonic()
    lab = lab_on(PROFILE)
    fleet = Fleet(lab)
    before = play(fleet)
    after = fleet.loss("eval-end")
    lab.assert_accounted_for(*WHERE)
    picture = lab.run_dir / "strip.png"
    report = lab.command("report", str(lab.run_dir), "--plot", str(picture), label="report")
    assert report.wait() == 0, report.errors
    assert picture.read_bytes().startswith(b"\x89PNG")
    took_s = time.monotonic() - began
    gone_s, back_s = (
        fleet.at[there] - fleet.at[since]
        for since, there in (("cut", "they are gone"), ("heals", "what they trained meanwhile is merged"))
    )
    say(
        f"four regions at 40 Mbit/s: loss {before:.2f} at the begin, {after:.2f} at the end; a region cut off is gone "
        f"after {gone_s:.1f} s, all it trained is merged {back_s:.1f} s after the healing; {took_s:.0f} s in all"
    )
    assert after < MOST_OF_BEGIN * before
    records = read_trace(lab.run_dir)
    shown = {what: at - records[0].t for what, at in fleet.at.items()}
    assert_it_is_in_the_picture(chart_of(records, losses_of(lab.run_dir)), shown)


def assert_it_is_in_the_picture(chart: Chart, at: dict[str, float]) -> None:
    """Who was where, when each joined, who was cut off and when it came back, and the loss. `at`: as in the chart."""
    assert [strip.label for strip in chart.strips] == [f"{name} ({region})" for name, region in WHERE.items()]
    strips = {strip.name: strip for strip in chart.strips}
    assert all(len(strip.joined) == 1 for strip in chart.strips)
    assert all(strips[name].joined[0] < at["four are merged"] for name in FIRST)
    assert at["four are merged"] < strips[FIFTH].joined[0] < at["the fifth is merged"]
    for name, strip in strips.items():
        assert cut_off(strip, at) == (name in AWAY), name
        assert not strip.dead, name
        without, apart = at["nothing of them is left"], at["rounds without them"]
        assert any(without < moment < apart for moment in strip.merged) == (name in HERE), name
        assert any(moment > at["heals"] for moment in strip.merged), name
        assert strip.training[-1][1] > at["what they trained meanwhile is merged"], "it is there at the end"
    assert sorted(name for name, _ in chart.losses) == sorted(WHERE)
    losses = dict(chart.losses)
    assert all(any(at["cut"] < moment < at["heals"] for moment, _ in losses[name]) for name in WHERE), "all train on"
    begin, end = losses["hub-a"][0][1], losses["hub-a"][-1][1]
    assert end < MOST_OF_BEGIN * begin, "it was there from the begin on; others begin with what is merged by then"


def cut_off(strip: Strip, at: dict[str, float]) -> bool:
    """Whether it was not heard, from before it was gone until after the link healed."""
    return any(since < at["they are gone"] and until > at["heals"] for since, until in strip.silent)
