"""The command line: what it knows, and that every error is one line and its exit code."""

import logging
import subprocess
import sys
from pathlib import Path

import click
import pytest

import zdiloco
from zdiloco import errors
from zdiloco.cli import main as mains
from zdiloco.cli.config import config
from zdiloco.cli.main import cli, run
from zdiloco.cli.signals import Leaving

COMMANDS = {
    "sync", "learner", "relay", "eval", "status", "report", "whatif", "checkpoint", "ledger", "config", "demo", "bench",
    "simulate", "plan", "doctor", "keygen", "invite", "join",
}  # fmt: skip


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert cli.commands.keys() == COMMANDS
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"Usage: zdiloco {name}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert zdiloco.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (["sink"], "zdiloco"),
        (["sync"], "zdiloco sync"),
        (["sync", "run.toml", "--frsh"], "zdiloco sync"),
        (["learner", "run.toml"], "zdiloco learner"),
        (["status", "h:1", "--timeout", "0"], "zdiloco status"),
        (["config", "chck", "run.toml"], "zdiloco config"),
        (["--log-level", "loud", "status", "h:1"], "zdiloco"),
        (["demo", "--tokens", "many"], "zdiloco demo"),
        (["bench", "overhead", "--steps", "many"], "zdiloco bench overhead"),
        (["report"], "zdiloco report"),
        (["whatif", "run", "--gamma", "1,much"], "zdiloco whatif"),
        (["whatif", "run", "--min-quorum", "1.5"], "zdiloco whatif"),
        (["whatif", "run", "--sync-period", ""], "zdiloco whatif"),
    ],
)
def test_wrong_usage_is_one_line_where_to_look_and_2(
    line: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line) == 2
    said = capsys.readouterr()
    assert said.out == ""
    first, then = said.err.splitlines()
    assert first.startswith("zdiloco: ")
    assert then == f"Try '{command} --help'."


def test_nothing_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    run([])
    said = capsys.readouterr()
    assert "Usage: zdiloco" in said.out + said.err


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (["config", "check", "RUN", "--log-level", "debug"], logging.DEBUG),
        (["--log-level", "debug", "config", "check", "RUN"], logging.DEBUG),
        (["--log-level", "debug", "config", "check", "RUN", "--log-level", "error"], logging.ERROR),
        (["config", "check", "RUN"], logging.INFO),
    ],
)
def test_the_log_level_goes_before_or_after_the_command(line: list[str], level: int, small_run: Path) -> None:
    assert run([str(small_run) if word == "RUN" else word for word in line]) == 0
    assert logging.getLogger("zdiloco").level == level


def test_every_command_takes_a_log_level() -> None:
    leafs = [*(each for each in cli.commands.values() if not isinstance(each, click.Group)), *config.commands.values()]
    assert len(leafs) == 16
    assert all(any("--log-level" in option.opts for option in leaf.params) for leaf in leafs)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError, 2),
        (errors.LinkError, 3),
        (errors.StoreError, 1),
        (errors.MachineError, 1),
        (errors.ZdilocoError, 1),
    ],
)
def test_an_error_is_one_line_and_its_code(
    error: type[errors.ZdilocoError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error("what happened,\n and what to do")

    monkeypatch.setattr(mains.sync, "callback", fail)
    assert run(["sync", "run.toml"]) == code
    said = capsys.readouterr()
    assert said.err == "zdiloco: what happened, and what to do\n"
    assert said.out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sync", "RUN", "--set", "net.port=x"], "net.port"),
        (["sync", "RUN", "--fresh", "--set", "run.name=/"], "run.name"),
        (["learner", "RUN", "--name", "x/y"], "--name"),
        (["learner", "RUN", "--name", "x", "--shard", "2"], "shard is 2"),
        (["learner", "RUN", "--name", "x", "--set", "task.min_data_bytes=100000000"], "at least 100.00 MB"),
        (["demo", "--dir", "HERE"], "is not empty"),
    ],
)
def test_bad_input_is_one_line_and_2(
    arguments: list[str],
    says: str,
    small_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    places = {"RUN": str(small_run), "HERE": str(small_run.parent)}
    assert run([places.get(each, each) for each in arguments]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.err.startswith("zdiloco: ")
    assert said.out == ""


@pytest.mark.parametrize("raised", [KeyboardInterrupt, click.Abort])
def test_an_interrupt_is_130(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(**_: object) -> None:
        raise raised

    monkeypatch.setattr(mains.demo, "callback", interrupt)
    assert run(["demo"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "zdiloco: interrupted"


def test_what_a_command_returns_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mains.sync, "callback", lambda **_: 3)
    assert run(["sync", "run.toml"]) == 3
    monkeypatch.setattr(mains.sync, "callback", lambda **_: None)
    assert run(["sync", "run.toml"]) == 0


def test_a_leave_in_order_is_0_and_an_interrupt_130(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says the same."""
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    caplog.set_level(logging.INFO)
    heard: list[str] = []
    leaving = Leaving(heard.append)
    assert (leaving.exit_code(0), leaving.exit_code(3)) == (0, 3)
    leaving._handle(15, None)
    assert (leaving.exit_code(0), leaving.exit_code(3), heard) == (0, 3, ["SIGTERM"])
    leaving = Leaving(heard.append)
    leaving._handle(2, None)
    assert (leaving.exit_code(0), leaving.exit_code(1), heard) == (130, 1, ["SIGTERM", "SIGINT"])
    assert [record.getMessage() for record in caplog.records] == [
        "ends after SIGTERM code=0", "ends after SIGTERM code=3", "ends after SIGINT code=130",
        "ends after SIGINT code=1",
    ]  # fmt: skip


def test_a_signal_that_came_early_is_heard_by_whoever_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    early: list[str] = []
    late: list[str] = []
    leaving = Leaving(early.append)
    leaving.becomes(late.append)
    assert late == []
    leaving._handle(15, None)
    assert (early, late) == ([], ["SIGTERM"])
    leaving = Leaving(early.append)
    leaving._handle(2, None)
    leaving.becomes(late.append)
    assert (early, late) == (["SIGINT"], ["SIGTERM", "SIGINT"])


def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    monkeypatch.setattr("os._exit", ended.append)
    leaving = Leaving(lambda name: None)
    leaving._handle(15, None)
    assert ended == []
    leaving._handle(15, None)
    assert ended[0] == 130


@pytest.mark.proc
def test_help_and_status_do_not_load_torch() -> None:
    """They answer in a fraction of the time that torch takes."""
    script = (
        "import sys, zdiloco.cli.main as m; m.run(['--help']); m.run(['status', '127.0.0.1:9', '--timeout', '0.1']);"
        "sys.exit('torch' in sys.modules or 'zdiloco.node.query' not in sys.modules)"
    )
    root = Path(zdiloco.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
