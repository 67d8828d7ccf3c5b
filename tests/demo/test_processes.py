"""Child processes: started with a log, ended whatever happens, and asked before they are killed."""

import os
import signal
import socket
from pathlib import Path

import pytest

from zdiloco.demo import processes
from zdiloco.demo.processes import Child, end_all, free_port_base
from zdiloco.errors import ConfigError


@pytest.mark.proc
def test_a_child_runs_the_real_command_and_leaves_its_words_in_its_log(tmp_path: Path) -> None:
    child = Child("syncer", ["sync", str(tmp_path / "nothing.toml")], tmp_path / "syncer.log")
    assert child.wait(120) == 2
    assert child.exit_code == 2
    assert child.last_lines(1).startswith("zdiloco: ")
    assert "nothing.toml" in child.last_lines(1)


@pytest.mark.proc
def test_all_children_end(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f'[run]\ndir = "{tmp_path / "run"}"\n[net]\nport = {free_port_base()}\n')
    children = [Child("s", ["sync", str(tmp_path / "run.toml")], tmp_path / "s.log") for _ in range(1)]
    children.append(Child("v", ["--version"], tmp_path / "v.log"))
    assert children[1].wait(120) == 0
    end_all(children)
    assert children[0].exit_code in (0, -signal.SIGTERM)  # it may not have got as far as to listen to signals
    end_all(children)


class Stubborn:
    """Does not hear; `interrupted`: the demo's owner presses Ctrl-C while it is waited for."""

    def __init__(self, interrupted: bool = False) -> None:
        self.exit_code: int | None = None
        self.interrupted = interrupted
        self.asked = 0

    def ask(self) -> None:
        self.asked += 1

    def wait(self, timeout_s: float) -> None:
        assert timeout_s <= processes.LEAVE_S
        if self.interrupted:
            raise KeyboardInterrupt

    def kill(self) -> None:
        self.exit_code = -9


def test_who_does_not_hear_is_killed() -> None:
    child = Stubborn()
    end_all([child])
    assert (child.asked, child.exit_code) == (1, -9)


def test_an_interrupt_while_children_leave_kills_them_all() -> None:
    children = [Stubborn(interrupted=True), Stubborn()]
    with pytest.raises(KeyboardInterrupt):
        end_all(children)
    assert [child.exit_code for child in children] == [-9, -9]


def test_ports_are_free_and_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    base = free_port_base()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 3))
        monkeypatch.setattr(processes, "PORTS", range(base, base + 5))
        with pytest.raises(ConfigError, match="no 4 free ports in a row"):
            free_port_base()


def test_children_find_this_package_and_keep_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    environment = processes._environment()
    first, _, rest = environment["PYTHONPATH"].partition(os.pathsep)
    assert (Path(first) / "zdiloco" / "cli" / "main.py").is_file()
    assert rest == "/somewhere"
    assert (environment["OMP_NUM_THREADS"], environment["OMP_WAIT_POLICY"]) == ("1", "PASSIVE")
