"""`zdiloco status`: where to ask, what is shown, and one line when nobody answers."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.accept.pace import assert_within
from zdiloco.cli.main import run
from zdiloco.cli.status import net_of
from zdiloco.cli.status_text import WITHOUT_VALUES, status_text
from zdiloco.core.start import SyncerPhase
from zdiloco.errors import ConfigError, MalformedFrame
from zdiloco.node.query import Query

ROUND = {"state": "grace", "version": 4}
ANSWER: dict[str, Any] = {
    "run_id": "run-1", "epoch": 2, "phase": "running", "progress": 0.25, "target_tokens": 4000, "rounds": 1200,
    "merged_tokens": 1000.4, "mean_participants": 1.5, "quorum": 1, "live": 2, "max_open_rounds": 3,
    "waits": "",
    "ledger": {"trained": 1200, "merged": 1000.4, "lost": None},
    "fragments": [
        {"fragment": 0, "version": 12, "stable": 9, "held": 1, "round": ROUND, "why": "grace window, 1 in, missing b"},
        {"fragment": 1, "version": 7, "stable": None, "held": 0, "round": None, "why": "not yet due"},
    ],
    "learners": [
        {"name": "us-east-0", "state": "live", "step": 1234, "steps_per_s": 2.5, "staleness": 0.25, "rounds": 9,
         "codec": "int8", "merged_tokens": 900.0, "last_seen_s": 0.31, "why": "training", "behind": ""},
        {"name": "b", "state": "gone", "step": 7, "steps_per_s": 0.0, "staleness": None, "rounds": 0,
         "codec": "", "merged_tokens": 0.0, "last_seen_s": 61.0, "why": "silent for 6.1 s",
         "behind": "a step of it takes 9 s"},
    ],
    "node": {"insecure": False},
}  # fmt: skip


def test_the_text_shows_run_fragments_and_learners() -> None:
    lines = status_text(ANSWER).splitlines()
    assert lines[0] == "run run-1, epoch 2, running"
    assert lines[1] == (
        "merged 1,000 tokens (25.0% of 4,000); since this syncer started 1,200 rounds of 1.50 learners on average"
    )
    assert lines[3] == "ledger of the processes since this syncer started: trained 1,200, lost -"
    assert lines[5:8] == [
        "fragment  version  stable  held  round  why",
        "       0       12       9     1  grace  grace window, 1 in, missing b",
        "       1        7       -     0  -      not yet due",
    ]
    assert lines[10].startswith("us-east-0  live   1,234     2.50       0.25       9  int8             900   0.3 s ago")
    assert lines[10].endswith("s ago  training")
    assert lines[11].startswith("b          gone       7     0.00          -       0  -                  0  61.0 s ago")
    assert lines[11].endswith("silent for 6.1 s; a step of it takes 9 s")


def test_regions_are_shown_where_anybody_said_one() -> None:
    first, second = ANSWER["learners"]
    lines = status_text({**ANSWER, "learners": [{**first, "region": "us-east"}, second]}).splitlines()
    assert [line.split()[:3] for line in lines[9:]] == [
        ["learner", "region", "state"], ["us-east-0", "us-east", "live"], ["b", "-", "gone"],
    ]  # fmt: skip
    assert status_text({**ANSWER, "learners": [{**first, "region": ""}, second]}) == status_text(ANSWER)


def test_what_a_syncer_adapts_is_told_with_its_reason() -> None:
    why = "K is 3, no longer 2: 3.00 take part"
    adaptive = {"sync_period": 30, "min_quorum": 3, "grace_share": 0.7, "answered": 1.0, "why": why}
    lines = status_text({**ANSWER, "adaptive": adaptive}).splitlines()
    assert lines[3] == f"adaptive: H 30, K up to 3, grace at least 70% of the slack ({why})"
    assert status_text({**ANSWER, "adaptive": None}) == status_text(ANSWER)


def test_a_syncer_without_keys_or_target_says_so() -> None:
    text = status_text({**ANSWER, "target_tokens": 0, "node": {"insecure": True}, "learners": [], "fragments": []})
    assert "INSECURE" in text
    assert "% of" not in text


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        ("recovering", "recovering: reading the checkpoint, asking the fleet"),
        ("empty", "empty: waiting for the first learner, whose values begin the run"),
        ("sealing", "sealing: writing the first checkpoint of its epoch"),
    ],
)
def test_before_a_syncer_has_values_it_says_what_it_does_and_no_zeros(phase: str, says: str) -> None:
    assert status_text({**ANSWER, "phase": phase}) == f"run run-1, {says}"
    assert "INSECURE" in status_text({**ANSWER, "phase": phase, "node": {"insecure": True}})


def test_the_phases_told_are_phases() -> None:
    assert {*WITHOUT_VALUES} < {str(phase) for phase in SyncerPhase}


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [("127.0.0.1:5700", "127.0.0.1", 5700), ("tcp://a.example:6000", "a.example", 6000), ("[::1]:5700", "::1", 5700)],
)
def test_endpoints(endpoint: str, host: str, port: int) -> None:
    net = net_of(endpoint)
    assert (net.connect, net.port) == (host, port)


@pytest.mark.parametrize("endpoint", ["", "5700", "host", "host:", ":5700", "host:abc", "host:70000", "host:²"])
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"ENDPOINT|net\.port"):
        net_of(endpoint)


def test_the_answer_is_text_or_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Query, "ask", lambda self, timeout_s, relay: ANSWER)
    assert run(["status", "127.0.0.1:5700", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWER
    assert run(["status", "127.0.0.1:5700"]) == 0
    assert capsys.readouterr().out == status_text(ANSWER) + "\n"


@pytest.mark.net
def test_nobody_there_is_code_3_and_one_line_in_time(
    free_ports: Callable[[int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert run(["status", f"127.0.0.1:{free_ports(4)}", "--timeout", "0.4"]) == 3
    assert time.monotonic() - began >= 0.4
    assert_within(3.0, began)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no syncer answers" in said.err


@pytest.mark.parametrize("answer", [{}, {"phase": 3}, {"fragments": 1, "learners": {}}, {"phase": [], "fragments": []}])
def test_an_answer_that_no_syncer_gives_is_the_peers_fault(answer: dict[str, object]) -> None:
    with pytest.raises(MalformedFrame, match="not the status"):
        status_text(answer)


@pytest.mark.parametrize(("state", "told"), [("live", True), ("joining", False), ("gone", False)])
def test_that_a_downlink_does_not_carry_the_broadcast_is_told_of_those_who_could_listen(state: str, told: bool) -> None:
    learners = [{**ANSWER["learners"][0], "state": state, "listening": False}]
    assert ("does not carry the broadcast" in status_text({**ANSWER, "learners": learners})) == told


def test_who_waits_for_whole_values_is_told_and_older_syncers_are_read() -> None:
    line = "whole values: 2 being served, 14 wait for their turn"
    node = {"insecure": False, "pulls": {"moving": 2, "waiting": 14}}
    assert line in status_text({**ANSWER, "node": node}).splitlines()
    for quiet in ({**node, "pulls": {"moving": 2, "waiting": 0}}, {"insecure": False}):
        assert "whole values" not in status_text({**ANSWER, "node": quiet})


def test_who_is_banned_or_over_a_limit_is_told_and_older_syncers_are_read() -> None:
    """With the reason and the seconds that are left; a syncer that has read everything says nothing of it."""
    limits = {
        "dropped": {"words": 1200, "banned": 7},
        "banned": [{"name": "eve", "why": "frame", "until_s": 45.2, "times": 2}],
        "over": [{"name": "b", "words": 1200}],
        "connections": {"there": 4096, "most": 4096, "hung_up": 31},
    }
    text = status_text({**ANSWER, "node": {"insecure": False, "limits": limits}})
    assert "BANNED: eve for 45 s more, time 2: frame" in text
    assert "over the limit: b, dropped 1,200 words" in text
    assert "connections: 4,096 of 4,096, hung up 31" in text
    quiet = {"dropped": {}, "banned": [], "over": [], "connections": {"there": 8, "most": 4096, "hung_up": 0}}
    assert status_text({**ANSWER, "node": {"insecure": False, "limits": quiet}}) == status_text(ANSWER)
