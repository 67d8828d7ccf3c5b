"""`zdiloco doctor`: what it prints, its exit codes, and the limits of real processes.

Planted for real in a child: few descriptors, little memory, too many torch threads.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import zdiloco
from tests.doctor.parts import LIMIT_S, far_side
from zdiloco.cli.doctor_text import doctor_text
from zdiloco.cli.main import run
from zdiloco.doctor.finding import Measured, Side, Verdict, found, unknown

ROOT = Path(zdiloco.__file__).parent.parent
Ports = Callable[[int], int]


@pytest.fixture
def run_toml(tmp_path: Path, free_ports: Ports) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(f'[run]\ndir = "{tmp_path / "run"}"\n[net]\nport = {free_ports(4)}\n[task]\npreset = "tiny"\n')
    return path


def port_of(path: Path) -> int:
    return int(path.read_text().partition("port = ")[2].split()[0])


def test_the_text_has_a_row_a_finding_and_what_mends_the_bad_ones() -> None:
    bad = found("clock", Side.THERE, Verdict.WARN, Measured(said="7 s ahead of ours, \x1b give or take 0.1 s"))
    good = found("mtu", Side.THERE, Verdict.OK, Measured(said="1500 bytes", value=1500.0, unit="bytes"))
    lines = doctor_text([bad, good, unknown("idle", Side.HERE, "not told")]).splitlines()
    assert lines[0] == "WARN     clock  there  7 s ahead of ours, ? give or take 0.1 s"
    assert lines[1] == "OK       mtu    there  1500 bytes"
    assert lines[4:7] == [
        "WARN clock (there): 7 s ahead of ours, ? give or take 0.1 s",
        f"  {bad.why}",
        "  mend it: sudo timedatectl set-ntp true (on the side that is wrong)",
    ]
    assert lines[-1] == "1 to be looked at, 1 not known, 1 good"
    assert doctor_text([bad, bad]).count("mend it") == 1


@pytest.mark.net
def test_a_sound_road_is_0_and_json_is_one_object(run_toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with far_side(port_of(run_toml)):
        assert run(["doctor", str(run_toml), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["role"], found["fails"]) == ("learner", False)
    assert {each["verdict"] for each in found["findings"]} == {"ok"}
    assert found["findings"][0].keys() == {"check", "side", "verdict", "measured", "value", "unit", "why", "fix"}


@pytest.mark.net
def test_what_will_fail_is_1(run_toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with far_side(port_of(run_toml)):
        assert run(["doctor", str(run_toml), "--parameters", "1e12"]) == 1
    said = capsys.readouterr().out
    assert "FAIL memory (here): " in said
    assert " will fail" in said.splitlines()[-1]


@pytest.mark.net
@pytest.mark.parametrize("role", ["sync", "relay", "learner"])
def test_every_role_is_examined(role: str, run_toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--set", f"relay.port={port_of(run_toml)}", "--set", "net.port=5800"] if role == "relay" else []
    assert run(["doctor", str(run_toml), "--role", role, "--rtt-ms", "1", *more]) == 0
    said = capsys.readouterr().out
    assert ("own port" in said) == (role != "learner")
    assert ("partner" in said) == (role != "sync")


def test_a_learner_binds_nothing(run_toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(run_toml), "--listen", "--role", "learner"]) == 2
    assert "A learner binds no port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--processes", "0"], "--processes"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "nan"], "--timeout"),
        (["--step-time", "nan"], "--step-time"),
        (["--rtt-ms", "nan"], "--rtt-ms"),
        (["--parameters", "0"], "parameters"),
        (["--parameters", "1e9", "--model", "x"], "--parameters does not go with --model"),
        (["--learners", "2", "--set", "sync.min_quorum=3"], "sync.min_quorum is 3"),
        (["--role", "eval"], "--role"),
    ],
)
def test_what_cannot_be_is_one_line_and_2(
    words: list[str], says: str, run_toml: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", str(run_toml), *words]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
    assert len(said.err.splitlines()) <= 2


def listener(run_toml: Path, *words: str) -> subprocess.Popen[str]:
    """A far side in a process of its own, which has said that it listens."""
    command = [sys.executable, "-m", "zdiloco.cli", "doctor", str(run_toml), "--listen", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("listens at 127.0.0.1:")
    return process


@pytest.mark.net
@pytest.mark.proc
def test_the_far_side_serves_until_it_is_asked_to_leave(
    run_toml: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    process = listener(run_toml, "--json")
    try:
        assert run(["doctor", str(run_toml)]) == 0
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert json.loads(said) == {
        "role": "sync", "listened": f"127.0.0.1:{port_of(run_toml)}", "visitors": ["127.0.0.1"],
    }  # fmt: skip
    assert "nobody listens" not in capsys.readouterr().out


@pytest.mark.net
@pytest.mark.proc
def test_the_far_side_ends_with_its_time(run_toml: Path) -> None:
    process = listener(run_toml, "--timeout", "0.2")
    assert process.communicate(timeout=LIMIT_S)[0] == ""
    assert process.returncode == 0


def child(limits: str, words: Sequence[str], **environment: str) -> dict[str, dict[str, str]]:
    """What a process with these limits finds here, by check."""
    script = f"import resource as r, sys; {limits}; from zdiloco.cli.main import run; sys.exit(run({list(words)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.returncode == int(found["fails"])
    return {each["check"]: each for each in found["findings"] if each["side"] == "here"}


def verdicts(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {check: each["verdict"] for check, each in found.items() if each["verdict"] in ("warn", "fail")}


@pytest.mark.proc
def test_limits_of_a_process_are_found_and_nothing_without_them(run_toml: Path) -> None:
    """A syncer for sixty learners: it has 128 descriptors; torch has more threads than there are cores, alone or
    together with another process; or nothing is wrong."""
    words = ["doctor", str(run_toml), "--role", "sync", "--learners", "60", "--json"]
    assert verdicts(child("pass", words)) == {}
    few = child("r.setrlimit(r.RLIMIT_NOFILE, (128, 128))", words)
    assert verdicts(few) == {"descriptors": "fail"}
    assert few["descriptors"]["fix"] == "ulimit -n 512"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert verdicts(child(f"import torch; torch.set_num_threads({cores + 1})", words)) == {"threads": "warn"}
    two = [*words, "--processes", "2"]
    many = child("pass", two, OMP_NUM_THREADS=str(cores))
    assert verdicts(many) == {"threads": "warn"}
    assert many["threads"]["fix"].startswith(f"export OMP_NUM_THREADS={max(1, cores // 2)} ")
    assert verdicts(child("pass", two, OMP_NUM_THREADS="1")) == ({} if cores > 1 else {"threads": "warn"})


@pytest.mark.proc
@pytest.mark.slow  # two processes that load torch; `tests/doctor/test_host.py` reads the same limit
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds to RLIMIT_AS")
def test_too_little_memory_for_a_process_is_found(run_toml: Path) -> None:
    """3 GB of addresses, for a model of 100 million parameters."""
    words = ["doctor", str(run_toml), "--role", "learner", "--json", "--parameters"]
    limits = "r.setrlimit(r.RLIMIT_AS, (3 * 10**9,) * 2)"
    found = child(limits, [*words, "1e8"])
    assert found["memory"]["verdict"] == "fail"
    assert "3 GB (ulimit -v)" in found["memory"]["measured"]
    assert child(limits, [*words, "1e6"])["memory"]["verdict"] == "ok"
