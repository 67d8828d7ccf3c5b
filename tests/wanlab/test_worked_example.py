"""The worked example of docs/wan-lab.md, as it stands there: its settings, its lines in their order, and what it says
of a region that is cut off and comes back."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zdiloco.demo.learner_log import losses_of
from zdiloco.strip import chart_of
from zdiloco.trace import read_trace
from zdiloco.wanlab.link import TUN
from zdiloco.wanlab.namespaces import why_not

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "wan-lab.md").read_text()
LAB = f"x{os.getpid()}"
LIMIT_S = 120.0
AWAY, HERE, FIFTH = ("eu-a", "eu-b"), ("central", "west-a"), "west-b"
pytestmark = [pytest.mark.proc, pytest.mark.net, pytest.mark.wan, pytest.mark.slow]


class Terminal:
    """A folder with run.toml, in which lines of a shell are run as a user would, in a lab of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        (settings,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
        (folder / "run.toml").write_text(settings)
        for place, words in {"bin/wan-lab": f"wanlab --lab {LAB}", "path/zdiloco": "__main__"}.items():
            path = folder / place
            path.parent.mkdir()
            module = f"zdiloco.cli.{words}".removesuffix(".__main__")
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
            path.chmod(0o755)
        self.env = {
            **os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{folder / 'path'}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        }  # fmt: skip

    def line(self, text: str) -> str:
        """Run a line; one that ends in & goes on behind. Returns what it has said."""
        command = text.removesuffix("&").strip()
        if text != command:
            log = (self.folder / f"{len(self.started)}.log").open("wb")
            with log:
                process = subprocess.Popen(
                    ["sh", "-c", f"exec {command}"], cwd=self.folder, env=self.env, stdout=log, stderr=log
                )
            self.started.append(process)
            return ""
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (text, done.stderr, self.logs())
        return done.stdout

    def logs(self) -> str:
        """The last lines of everybody."""
        return "\n".join(path.read_text()[-500:] for path in sorted(self.folder.glob("*.log")))

    def status(self) -> dict[str, Any]:
        """What the syncer answers; empty: it does not, yet."""
        words = ["bin/wan-lab", "exec", "us-central", "--", "zdiloco", "status", "10.78.1.1:5700", "--json"]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def until(self, what: str, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Ask until the learners, by name, are so; nobody may have ended meanwhile."""
        ends_at = time.monotonic() + LIMIT_S
        while True:
            learners = {each["name"]: each for each in self.status().get("learners", ())}
            if learners and holds(learners):
                return learners
            assert time.monotonic() < ends_at, (what, learners, self.logs())
            assert all(each.poll() is None for each in self.started), self.logs()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal, and a lab that is taken down whatever happens."""
    reason = why_not(f"wanlab.probe.{os.getpid()}") or ("" if Path(TUN).exists() else f"there is no {TUN}")
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    made = Terminal(tmp_path)
    yield made
    made.line("bin/wan-lab down")
    for each in made.started:
        each.wait(LIMIT_S)
    Path(f"/run/zdiloco-wan-lab/{LAB}.lock").unlink()


def blocks() -> list[list[str]]:
    """The shell blocks of the document, by lines."""
    return [each.splitlines() for each in re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)]


@pytest.mark.timeout(600)
def test_the_example_runs_as_it_stands(terminal: Terminal, say: Callable[[str], None]) -> None:
    starts, story, told = blocks()
    for line in starts[:-1]:
        terminal.line(line)
    shown = terminal.line("bin/wan-lab show")
    assert all(re.search(rf"{name}\s+{address}\n", shown) for name, address in
               (("us-central", "10.78.1.1"), ("europe", "10.78.4.1")))  # fmt: skip
    terminal.until("all are merged", lambda all_: all(all_.get(name, {}).get("rounds", 0) for name in (*AWAY, *HERE)))
    assert all(name in terminal.line(starts[-1]) for name in (*AWAY, *HERE))
    fifth, cut, asks, heal, asks_again, down = story
    terminal.line(fifth)
    terminal.until("the fifth is merged", lambda all_: all_.get(FIFTH, {}).get("rounds", 0) > 0)
    began = time.monotonic()
    terminal.line(cut)
    away = terminal.until("europe is gone", lambda all_: all(_state(all_, name) in ("gone", "absent") for name in AWAY))
    gone_s = time.monotonic() - began
    then = {name: away.get(name, {}).get("merged_tokens", 0) for name in (*AWAY, *HERE)}
    terminal.until("the others go on", lambda all_: all(all_[name]["merged_tokens"] > then[name] for name in HERE))
    terminal.line(asks)
    began = time.monotonic()
    terminal.line(heal)
    terminal.until(
        "europe is merged again",
        lambda all_: all(_state(all_, n) == "live" and all_[n]["merged_tokens"] > then[n] for n in AWAY),
    )
    say(f"a region cut off: gone after {gone_s:.1f} s, merged again {time.monotonic() - began:.1f} s after the healing")
    terminal.line(asks_again)
    assert "taken down" in terminal.line(down)
    verified, reported = (terminal.line(line) for line in told)
    assert "\nbalanced: " in verified
    assert all(name in reported for name in (*AWAY, *HERE, FIFTH))
    assert_it_is_in_the_picture(terminal.folder / "runs" / "four-regions", gone_s)


def assert_it_is_in_the_picture(run_dir: Path, gone_s: float) -> None:
    """Who was where, the fifth that joins later, and for how long europe was not heard at least."""
    assert (run_dir / "strip.png").read_bytes().startswith(b"\x89PNG")
    chart = chart_of(read_trace(run_dir), losses_of(run_dir))
    assert [strip.label for strip in chart.strips] == [
        "eu-a (europe)", "eu-b (europe)", "central (us-central)", "west-a (us-west)", "west-b (us-west)",
    ]  # fmt: skip
    joined = {strip.name: strip.joined for strip in chart.strips}
    assert all(joined[FIFTH] > joined[name] for name in (*AWAY, *HERE))
    unheard = {strip.name: max((b - a for a, b in strip.silent), default=0.0) for strip in chart.strips}
    assert min(unheard[name] for name in AWAY) >= gone_s
    assert sorted(name for name, _ in chart.losses) == sorted(joined)


def _state(learners: dict[str, dict[str, Any]], name: str) -> str:
    return str(learners.get(name, {}).get("state", "absent"))
