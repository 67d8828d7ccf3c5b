"""`zdiloco relay` and `zdiloco status --relay`: what is shown, what is refused, and how the process leaves."""

import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_processes import LIMIT_S, Processes, ended, processes, said_until  # noqa: F401 - a fixture
from tests.cli.test_status import ANSWER
from zdiloco.cli.main import run
from zdiloco.cli.relay_text import relay_text
from zdiloco.config import load
from zdiloco.errors import MalformedFrame
from zdiloco.node.query import Query

OWN: dict[str, Any] = {
    "relay": "10.1.0.2:5710", "uptime_s": 3601.2, "insecure": False,
    "upstream": {
        "at": "syncer.example:5700", "connected": True, "listening": True, "dialled_anew": 1, "lost": 2,
        "bytes_up": 3_000_000, "bytes_down": 999,
    },
    "region": {"bytes_up": 3_100_000, "bytes_down": 12_500, "strangers": {}, "malformed": 4},
    "cache": {
        "bytes": 2_000_000_000, "most_bytes": 2_147_483_648, "bodies": 48, "handed_out": 9, "handed_out_bytes": 9000,
        "asked_again": 1, "evicted": 3, "passed_over": 1,
    },
    "waiting_bytes": 0, "budget_bytes": 268_435_456, "dropped": 7, "most_learners": 64,
    "learners": [
        {"name": "eu-0", "incarnation": "0" * 16, "last_seen_s": 0.31, "lag": 2, "pulled": 6, "repaired_chunks": 9,
         "repaired_bytes": 9000, "bytes_up": 1_500_000, "bytes_down": 999, "waiting_bytes": 0, "dropped": 7,
         "left": False},
        {"name": "b", "incarnation": "0" * 16, "last_seen_s": 61.0, "lag": None, "pulled": 0, "repaired_chunks": 0,
         "repaired_bytes": 0, "bytes_up": 12, "bytes_down": 0, "waiting_bytes": 0, "dropped": 0, "left": True},
    ],
}  # fmt: skip


def test_the_text_shows_both_sides_the_cache_and_the_learners() -> None:
    assert relay_text(OWN).splitlines() == [
        "relay 10.1.0.2:5710, upstream syncer.example:5700 connected, lost 2 times in 3,601 s, roads dialled anew 1",
        "upstream 3.0 MB up, 999 B down; region 3.1 MB up, 12.5 kB down",
        "cache 48 bodies, 2.0 GB of 2.1 GB; handed out 9.0 kB, evicted 3, passed over 1",
        "waiting 0 B of 268.4 MB, dropped 7, malformed 4",
        "",
        "learner   last seen  lag  pulled  repaired      up   down  waiting  dropped  state",
        "eu-0      0.3 s ago    2       6    9.0 kB  1.5 MB  999 B      0 B        7  here",
        "b        61.0 s ago    -       0       0 B    12 B    0 B      0 B        0  left",
    ]


def test_that_a_broadcast_is_not_taken_is_told() -> None:
    text = relay_text({**OWN, "upstream": {**OWN["upstream"], "listening": False}})
    assert "connected (nobody here takes the broadcast), lost 2 times" in text


def test_what_is_wrong_stands_in_capitals() -> None:
    text = relay_text({**OWN, "insecure": True, "upstream": {**OWN["upstream"], "connected": False}})
    assert "syncer.example:5700 NOT CONNECTED" in text
    assert "INSECURE" in text


def test_a_relay_that_merges_shows_what_came_of_it() -> None:
    own = {"codec": "fp32", "off": False, "bundles": 12, "bundled": 40, "refused": 1, "forwarded": 9, "passed_over": 2,
           "kept_bytes": 1_500_000}  # fmt: skip
    assert relay_text({**OWN, "premerge": own}).splitlines()[4] == (
        "premerge fp32: 40 contributions in 12 bundles, 1 of them refused; forwarded 9, passed over 2; kept 1.5 MB"
    )
    assert "premerge REFUSED by the syncer" in relay_text({**OWN, "premerge": {**own, "off": True}})


@pytest.mark.parametrize("answer", [{}, {"relay": 3}, {**OWN, "learners": 3}, {**OWN, "cache": {}}])
def test_an_answer_that_no_relay_gives_is_the_peers_fault(answer: dict[str, object]) -> None:
    with pytest.raises(MalformedFrame, match="not the status of a relay"):
        relay_text(answer)


@pytest.mark.net
def test_it_is_asked_for_by_a_flag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Query, "ask", lambda self, timeout_s, relay: OWN if relay else ANSWER)
    assert run(["status", "127.0.0.1:5710", "--relay", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == OWN
    assert run(["status", "127.0.0.1:5710", "--relay"]) == 0
    assert capsys.readouterr().out == relay_text(OWN) + "\n"
    monkeypatch.setattr(Query, "ask", lambda self, timeout_s, relay: ANSWER)
    assert run(["status", "127.0.0.1:5700", "--relay"]) == 2
    assert "a syncer answers there, no relay" in capsys.readouterr().err


def test_what_it_cannot_bind_is_one_line_and_code_2(
    small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    for settings, words in [
        (["relay.listen=0.0.0.0"], "relay.listen is '0.0.0.0'"),
        ([f"relay.port={load(small_run).net.port + 1}"], "a relay would dial itself"),
        (["relay.port=80"], "relay.port is 80"),
        (["relay.most_learners=0"], "relay.most_learners is 0"),
    ]:
        assert run(["relay", str(small_run), *(word for each in settings for word in ("--set", each))]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1


@pytest.mark.proc
def test_the_process_is_light_and_leaves_in_order(
    small_run: Path, processes: Processes, free_ports: Callable[[int], int], say: Callable[[str], None]  # noqa: F811
) -> None:
    """Without torch it is there at once, and small."""
    port = free_ports(4)
    began = time.monotonic()
    process = processes.start("relay", str(small_run), "--set", f"relay.port={port}")
    said_until(process, "relay serves listen=")
    started_s = time.monotonic() - began
    with Query(replace(load(small_run).net, port=port)) as query:
        assert query.ask(LIMIT_S, relay=True)["learners"] == []
    resident = re.search(r"VmRSS:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert resident
    assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 0, said
    assert time.monotonic() - asked < 5.0
    assert said.splitlines()[-1].endswith("ends after SIGTERM code=0")
    say(f"relay process: serves after {started_s:.2f} s, {int(resident[1]) / 1024:.0f} MiB resident")


def test_who_is_banned_is_told() -> None:
    banned = {"name": "eve", "why": "frame", "until_s": 45.2, "times": 1}
    limits = {"dropped": {}, "banned": [banned], "over": [], "connections": {}}
    text = relay_text({**OWN, "region": {**OWN["region"], "limits": limits}})
    assert "BANNED: eve for 45 s more, time 1: frame" in text
