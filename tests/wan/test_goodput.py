"""What a learner's contributions get of a far link, beside raw TCP on the same link in the same run.

Rule: raw TCP is one connection that sends as much as it can, measured before and after the learner; both without their
first seconds, in which TCP looks for the rate, and the learner for how much may be under way. A contribution counts by
its payload, when it has arrived whole.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child
from tests.wan.lab import Lab
from tests.wan.put_up import PutUp
from tests.wan.raw import raw_mbit_s
from zdiloco.rundir.journal import read_journal

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.wan, pytest.mark.timeout(SLOW_MACHINE_S)]
PROFILE, LINK = "one-link-200mbit-80ms", "wan"
PARAMETERS, FRAGMENTS = 64_000_000, 8
"""In fp32 32 MB a fragment, 1.3 s on the link; all of them with every step are more than it takes."""
ONE, FOUR = {"stripes": 1}, {"stripes": 4}
RAW_S, LEARNER_S = (4.0, 8.0), (35.0, 15.0)
"""How long each settles, and how long it is measured then."""
SECTIONS: dict[str, dict[str, Any]] = {
    "sync": {"sync_period": 1, "num_fragments": FRAGMENTS, "report_every_s": 0.2, "beat_every_s": 1.0,
             "suspect_after_s": 6.0, "gone_after_s": 20.0, "checkpoint_every_s": 600.0},
    "learner": {"codec": "fp32", "silent_after_s": 15.0, "answer_timeout_s": 15.0, "save_every_s": 0.0},
    "merge": {"delta_codec": "4bit"},
}  # fmt: skip


@pytest.fixture
def put_up(request: pytest.FixtureRequest) -> Iterator[PutUp]:
    """The profile, taken down whatever happens; skips, with the reason, where there can be none."""
    request.getfixturevalue("regions_of")
    made = PutUp(PROFILE)
    yield made
    made.close()


@pytest.fixture
def lab(put_up: PutUp, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """A stage in it; whoever still runs at the end is killed."""
    made = Lab(tmp_path, request.getfixturevalue("forks"), put_up)
    yield made
    made.close()


class Pushing:
    """A learner in region 1 that always has more contributions than its link takes, and its syncer in region 0."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.syncer = lab.sync()
        lab.until(lab.status, "the syncer answers", self.syncer)
        self.learner = lab.ballast(1, "far", PARAMETERS, 0.01)

    @property
    def everybody(self) -> list[Child]:
        return [self.syncer, self.learner]

    def arrived(self) -> list[tuple[float, int]]:
        """When contributions came, and their payload."""
        journal: Iterable[Any] = read_journal(self.lab.run_dir)
        return [(line["t"], line["nbytes"]) for line in journal if line["kind"] == "arrived"]

    def begun(self) -> None:
        """Wait until a contribution has arrived: both have all values."""
        self.lab.until(self.arrived, "a contribution", *self.everybody)

    def mbit_s(self, settles_s: float, seconds: float) -> float:
        """Payload that arrives in a second, after it has settled from now on, from one arrival to another."""
        begins = time.monotonic() + settles_s
        ends = begins + seconds
        came = self.lab.until(
            lambda: (found := self.arrived())[-1][0] > ends and found, "contributions", *self.everybody
        )
        inside = [(at, nbytes) for at, nbytes in came if begins <= at <= ends]
        assert len(inside) > 2, came
        return sum(nbytes for _, nbytes in inside[1:]) * 8e-6 / (inside[-1][0] - inside[0][0])

    def end(self) -> None:
        for each in (self.learner, self.syncer):
            each.kill()
            each.wait()


@pytest.mark.long
@pytest.mark.parametrize(
    ("losses", "net", "least"),
    [
        pytest.param(("0%", "0%"), ONE, 0.95, id="no loss"),
        pytest.param(("0%", "0%"), {"keys": "keys", "insecure": False}, 0.9, id="no loss, with keys"),
        pytest.param(("0%", "0.1%"), ONE, None, id="some loss"),
        pytest.param(("0%", "1%"), ONE, None, id="much loss"),
        pytest.param(("0%", "1%"), FOUR, 1.2, id="much loss on four"),
        pytest.param(("1%", "1%"), FOUR, 1.2, id="much loss on four from the beginning"),
    ],
)
def test_contributions_get_what_raw_tcp_gets(
    put_up: PutUp, lab: Lab, say: Callable[[str], None],
    losses: tuple[str, str], net: dict[str, Any], least: float | None,
) -> None:  # fmt: skip
    """`losses`: while the run begins, and from then on. With loss one stripe is told and not judged: what one
    connection suffers, the other one does."""
    begins, loss = losses
    put_up.change(LINK, rate="1000mbit", delay="1ms", queue="20ms")
    ceiling = raw_mbit_s(put_up, 1.0, 3.0)
    put_up.change(LINK, rate="200mbit", delay="40ms", queue="100ms", loss=loss)
    before = raw_mbit_s(put_up, *RAW_S)
    put_up.change(LINK, loss=begins)
    if "keys" in net:
        net = {**net, "keys": str(lab.made_keys("far"))}
    lab.write(**SECTIONS, net=net)
    pushing = Pushing(lab)
    pushing.begun()
    put_up.change(LINK, loss=loss)
    goodput = pushing.mbit_s(*LEARNER_S)
    pushing.end()
    after = raw_mbit_s(put_up, *RAW_S)
    raw = (before + after) / 2
    say(
        f"200 Mbit/s, 80 ms, loss {loss}, engine {put_up.state.engine} (it can do {ceiling:.0f} Mbit/s): a learner's "
        f"payload on {lab.config.net.stripes} stripe(s){' with keys' if 'keys' in net else ''} {goodput:.1f} Mbit/s, "
        f"raw TCP {before:.1f} before and {after:.1f} after: {goodput / raw:.2f}"
    )
    assert least is None or goodput >= least * raw
