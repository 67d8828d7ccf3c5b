"""Real processes report to a service manager: no systemd is needed to hear what they say, only its socket.

Rule: silence is asked for only where nothing can speak: of a process that is stopped, or of a loop that is held.
"""

import pathlib
import signal
import socket
from collections.abc import Callable

import pytest

from tests.accept.stage import LIMIT_S, Child, Stage
from tests.systemd.ear import Ear

pytestmark = [pytest.mark.proc, pytest.mark.net]


def answers(port: int) -> bool:
    """Whether all four ports take a connection now, at the first attempt."""
    for each in range(port, port + 4):
        socket.create_connection(("127.0.0.1", each), timeout=LIMIT_S).close()
    return True


def is_stopped(child: Child) -> bool:
    return pathlib.Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def sync(stage: Stage) -> tuple[Child, int]:
    return stage.sync(), stage.port


def relay(stage: Stage) -> tuple[Child, int]:
    """One that has no upstream: its ports answer all the same."""
    port = stage.port
    options = ("--set", f"relay.port={port}", "--set", "net.port=1025")
    return stage.command("relay", str(stage.toml), *options), port


@pytest.mark.parametrize("start", [sync, relay])
def test_what_binds_says_how_it_is(
    stage: Stage, ear: Ear, monkeypatch: pytest.MonkeyPatch, start: Callable[[Stage], tuple[Child, int]]
) -> None:
    """Loading, ready when the ports answer, beating while it lives, reloading, and that it ends."""
    ear.environment(monkeypatch)
    child, port = start(stage)
    began = ear.until("READY")
    assert answers(port)
    assert int(began[0]["EXTEND_TIMEOUT_USEC"]) > 60e6
    assert "loads" in began[0]["STATUS"]
    assert not [said for said in began[:-1] if "WATCHDOG" in said]
    for _ in range(3):
        said = ear.until("WATCHDOG")[-1]
        assert "learners" in said["STATUS"]
    child.send(signal.SIGSTOP)
    stage.until(lambda: is_stopped(child), "it is stopped", child)
    assert ear.is_silent()
    child.send(signal.SIGCONT)
    ear.until("WATCHDOG")
    child.send(signal.SIGHUP)  # without keys, too: a reload must not end a service
    assert int(ear.until("RELOADING")[-1]["MONOTONIC_USEC"]) > 0
    assert ear.until("READY")[-1]["WATCHDOG"] == "1"
    child.send(signal.SIGTERM)
    assert "SIGTERM" in ear.until("STOPPING")[-1]["STATUS"]
    assert child.wait() == 0, child.errors
    assert ear.drain() == []


def test_a_learner_waits_is_ready_and_leaves(stage: Stage, monkeypatch: pytest.MonkeyPatch, ear: Ear) -> None:
    """While nobody is there to join, it asks for more time; ready it is once it has joined."""
    ear.environment(monkeypatch)
    learner = stage.learner("a")
    waits = [ear.until("EXTEND_TIMEOUT_USEC")[-1] for _ in range(4)]
    assert "loads torch" in waits[0]["STATUS"]
    assert not [said for said in waits if "READY" in said or "WATCHDOG" in said]
    monkeypatch.delenv("NOTIFY_SOCKET")
    syncer = stage.sync()
    assert "training, step " in ear.until("READY")[-1]["STATUS"]
    ear.until("WATCHDOG")
    learner.send(signal.SIGTERM)
    ear.until("STOPPING")
    assert learner.wait() == 0, learner.errors
    assert ear.drain() == []
    stage.end(syncer)


def test_wrong_settings_are_code_2_and_never_ready(stage: Stage, monkeypatch: pytest.MonkeyPatch, ear: Ear) -> None:
    """RestartPreventExitStatus=2 knows them by it."""
    ear.environment(monkeypatch)
    stage.toml.write_text("[sync]\nmin_qorum = 1\n")
    assert stage.sync().wait() == 2
    assert not [said for said in ear.drain() if "READY" in said]
