"""The scripts are run for real, in a small copy of the checkout, with a Python and a pip of straw: no network.

Rule: what the scripts find is made by `tests/bin/conftest.py`. Only the long test installs.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import packaging.utils
import pytest

from tests.accept.pace import slowness
from tests.bin.conftest import (
    BARE_PYTHON,
    GATE,
    LIMIT_S,
    NO_NETWORK,
    NO_WHEEL,
    OLD_PYTHON,
    ROOT,
    Checkout,
    real_checkout,
)
from tests.bin.locks import pinned_here

pytestmark = pytest.mark.proc


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("script", ["zdiloco", "test", "wan-lab"])
def test_no_python_is_one_line(checkout: Checkout, script: str, shell: str) -> None:
    """Without any Python both scripts fail with one line that says what to install."""
    code, out, err = checkout.run(shell, str(checkout.root / "bin" / script))
    assert (code, out, len(err)) == (1, "", 1)
    assert "no Python found: install Python 3.11 or newer" in err[0]


def test_an_old_python_is_one_line(checkout: Checkout) -> None:
    """The version found is named; nothing is made."""
    checkout.fake("python3", OLD_PYTHON)
    code, _, err = checkout.run()
    assert (code, len(err)) == (1, 1)
    assert "python3 is Python 3.9.2, too old: install Python 3.11" in err[0]
    assert not (checkout.root / ".venv").exists()


def test_a_python_without_venv_is_one_line(checkout: Checkout) -> None:
    """The package to install is named, even beside an old Python."""
    checkout.fake("python3.12", BARE_PYTHON)
    checkout.fake("python3", OLD_PYTHON)
    code, _, err = checkout.run()
    assert (code, len(err)) == (1, 1)
    assert "python3.12 has no venv module: install it (Debian, Ubuntu: apt install python3-venv)" in err[0]


def test_a_python_of_the_users_choice_is_the_only_one_tried(fit: Checkout) -> None:
    """ZDILOCO_PYTHON wins over PATH, and is named when it does not run."""
    code, _, err = fit.run(ZDILOCO_PYTHON="/nowhere/python3")
    assert (code, len(err)) == (1, 1)
    assert "ZDILOCO_PYTHON=/nowhere/python3 does not run" in err[0]


def test_first_use_installs_and_later_uses_only_start(fit: Checkout) -> None:
    """Three pip calls, the packages by the sums of the locks; the second run makes none and costs little."""
    fit.fake("python3", OLD_PYTHON)  # a later candidate, never asked
    code, out, err = fit.run()
    assert (code, out) == (0, "PASSIVE: top two words\n")
    assert "Python 3.11.9" in err[0]
    assert "340 MB" in err[1]
    venv, torch, rest, own = fit.calls()
    assert venv == "venv"
    assert torch.endswith(f"--no-deps --require-hashes --no-index -r {fit.root}/locks/torch-cpu.lock")
    assert rest.endswith(f"--no-deps --require-hashes -r {fit.root}/requirements.lock")
    assert own.endswith(f"--no-deps --no-build-isolation -e {fit.root}")
    assert all("http" not in call for call in (torch, rest, own))
    took = []
    for _ in range(5):
        start = time.monotonic()
        assert fit.run(OMP_WAIT_POLICY="ACTIVE") == (0, "ACTIVE: top two words\n", [])
        took.append(time.monotonic() - start)
    assert fit.calls() == []
    assert min(took) < 0.3 or min(took) < 0.3 * slowness()


def test_it_works_through_links_from_anywhere(fit: Checkout, tmp_path: pathlib.Path) -> None:
    """A relative link to an absolute link, called from another folder by either shell, finds the checkout."""
    (fit.path / "absolute").symlink_to(fit.root / "bin" / "zdiloco")
    (fit.path / "relative").symlink_to("absolute")
    assert fit.run("relative", "x")[:2] == (0, "PASSIVE: x\n")
    for shell in ("sh", "bash"):
        assert fit.run(shell, str(fit.path / "relative"), "y") == (0, "PASSIVE: y\n", [])


def test_what_the_lab_runs_finds_the_command(fit: Checkout, tmp_path: pathlib.Path) -> None:
    """`bin/wan-lab exec REGION -- zdiloco ...` is that of the checkout, though PATH has none; also through a link."""
    (fit.path / "lab").symlink_to(fit.root / "bin" / "wan-lab")
    told = f"PASSIVE: exec a -- zdiloco, with {fit.root}/.venv/bin/zdiloco\n"
    assert fit.run(str(fit.root / "bin" / "wan-lab"), "exec", "a", "--", "zdiloco")[:2] == (0, told)
    assert fit.run("lab", "exec", "a", "--", "zdiloco") == (0, told, [])


def test_no_network_is_one_line(fit: Checkout) -> None:
    """pip's broken connection becomes one last line, without pip's own; the next run starts over and succeeds."""
    code, out, err = fit.run(FAKE_PIP=NO_NETWORK)
    assert (code, out) == (1, "")
    assert "failed, no network: the package index cannot be reached" in err[-1]
    assert not any("NewConnectionError" in line for line in err)
    assert fit.calls()[0] == "venv"
    assert fit.run()[0] == 0
    assert fit.calls()[0] == "venv"


def test_another_failure_shows_pips_last_lines_and_one_of_advice(fit: Checkout) -> None:
    """A full disk, a missing build, and what nobody knows."""
    for text, advice in {
        "No space left on device": "the disk is full",
        "ERROR: No matching distribution found for torch": "no build for this machine and Python",
        "ERROR: something else": "run this again",
    }.items():
        code, _, err = fit.run(FAKE_PIP=f"{NO_WHEEL} echo '{text}'; exit 1")
        assert code == 1
        assert err[-2] == text
        assert advice in err[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has two builds of torch at this place")
def test_linux_without_a_gpu_asks_for_the_cpu_build(fit: Checkout) -> None:
    """Without a wheel at hand the CPU index is asked; if that fails the big build is announced before it is fetched."""
    index = {"ZDILOCO_TORCH_INDEX": "http://127.0.0.1:9/cpu"}
    assert fit.run(FAKE_PIP=NO_WHEEL, **index)[0] == 0
    calls = fit.calls()
    if pathlib.Path("/proc/driver/nvidia").exists():
        assert not any("--extra-index-url" in call for call in calls)
        return
    assert calls[2].endswith(f"--extra-index-url http://127.0.0.1:9/cpu -r {fit.root}/locks/torch-cpu.lock")
    assert calls[3].endswith("requirements.lock")
    shutil.rmtree(fit.root / ".venv")
    code, _, err = fit.run(FAKE_PIP=NO_WHEEL + 'case "$*" in *-cpu.lock) exit 1 ;; esac', **index)
    assert code == 0
    assert "from the default package index" in err[-1]
    assert "several GB" in err[-1]
    assert fit.calls()[3].endswith(f"--no-deps --require-hashes -r {fit.root}/locks/torch.lock")
    shutil.rmtree(fit.root / ".venv")
    fit.fake("nvidia-smi", "#!/bin/sh\n")
    assert fit.run(FAKE_PIP=NO_WHEEL, **index)[0] == 0
    assert not any("127.0.0.1" in call for call in fit.calls())


def test_a_changed_lock_updates_and_a_failed_update_is_tried_again(fit: Checkout) -> None:
    """The environment stays; only pip runs again."""
    fit.run()
    with (fit.root / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    fit.calls()
    code, _, err = fit.run(FAKE_PIP=NO_NETWORK)
    assert (code, "no network" in err[-1]) == (1, True)
    fit.calls()
    code, out, err = fit.run()
    assert (code, out, len(err)) == (0, "PASSIVE: top two words\n", 1)
    assert "requirements have changed" in err[0]
    calls = fit.calls()
    assert len(calls) == 3
    assert all(call.startswith("pip") for call in calls)
    assert fit.run()[2] == []


def test_a_moved_checkout_is_made_anew(fit: Checkout) -> None:
    """An environment knows its place by absolute paths, so it cannot move along."""
    fit.run()
    fit.calls()
    fit.root = fit.root.rename(fit.root.with_name("moved"))
    assert fit.run()[0] == 0
    assert fit.calls()[0] == "venv"


def test_a_foreign_environment_is_left_alone(fit: Checkout) -> None:
    """A .venv that somebody else made is neither used nor deleted; an empty folder is nobody's."""
    venv = fit.root / ".venv"
    venv.mkdir()
    assert fit.run()[0] == 0
    (venv / ".zdiloco").unlink()
    (venv / "precious").touch()
    code, _, err = fit.run()
    assert (code, len(err)) == (1, 1)
    assert "was not made by this command: move it away, or delete it" in err[0]
    assert (venv / "precious").exists()


def test_two_at_once_build_once(fit: Checkout, tmp_path: pathlib.Path) -> None:
    """While one is at pip, the other says that it waits; afterwards both run, on one environment."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = fit.start(FAKE_PIP=GATE, GATE=str(gate))
    with gate.open("w") as opened:  # opens when the first one's pip has come to read
        second = fit.start()
        assert second.stderr is not None
        assert "another command is preparing .venv; waiting for it" in second.stderr.readline()
        opened.write("go\n")
    for process in (first, second):
        out, _ = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (0, "PASSIVE: top two words\n")
    assert fit.calls().count("venv") == 1


def test_a_killed_one_leaves_no_lock_and_its_half_is_made_anew(fit: Checkout, tmp_path: pathlib.Path) -> None:
    """SIGKILL in the middle of pip: the next one does not wait, and starts from nothing."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = fit.start(FAKE_PIP=GATE, GATE=str(gate))
    with gate.open("w"):
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
    assert (fit.root / ".venv" / "bin" / "python").exists()
    fit.calls()
    code, _, err = fit.run()
    assert code == 0
    assert not any("waiting" in line for line in err)
    assert fit.calls()[0] == "venv"


def test_options_of_bin_test(checkout: Checkout) -> None:
    """Help and a wrong option need no Python at all."""
    script = str(checkout.root / "bin" / "test")
    code, out, err = checkout.run(script, "--help")
    assert (code, err) == (0, [])
    assert "--all" in out
    assert "--long" in out
    code, out, err = checkout.run(script, "--all", "--fast")
    assert (code, out, len(err)) == (2, "", 1)
    assert "unknown option --fast" in err[0]


def test_ci_installs_what_is_missing_and_runs_all(checkout: Checkout) -> None:
    """Root with apt-get: the packages are installed; else one line says what is missing. Then bin/test --all."""
    shutil.copytree(ROOT / ".ci", checkout.root / ".ci")
    checkout.fake("apt-get", '#!/bin/sh\necho "apt-get $*" >>"$FAKE_LOG"\n')
    (checkout.root / "bin" / "test").write_text('#!/bin/sh\necho "CI=$CI $*"\n')
    code, out, err = checkout.run("bash", str(checkout.root / ".ci" / "run"))
    assert (code, out) == (0, "CI=true --all\n")
    said = checkout.calls() if os.geteuid() == 0 else err
    shells = ("dash", "busybox", "mksh", "zsh", "shellcheck")
    assert said[-1].endswith(
        " ".join(("python3 python3-venv", *shells, "systemd", "iproute2", "nftables", "procps", "qemu-system-x86"))
    )
    for name in ("python3", *shells, "systemd-analyze", "ip", "nft", "pkill", "qemu-system-x86_64"):
        checkout.fake(name, "#!/bin/sh\n")
    assert checkout.run("bash", str(checkout.root / ".ci" / "run")) == (0, "CI=true --all\n", [])


@pytest.mark.slow
@pytest.mark.beside
@pytest.mark.skipif(
    not (pathlib.Path(sys.prefix) / ".zdiloco").exists() and not os.environ.get("CI"),
    reason="these tests run in an environment that bin/test has not made",
)
def test_the_first_use_of_this_checkout_left_a_whole_environment() -> None:
    """CI runs on a fresh checkout, so that is a real first use: pip finds it sound, every pinned version is there."""
    subprocess.run([sys.executable, "-m", "pip", "check"], check=True, capture_output=True, timeout=LIMIT_S)
    missing = [str(each) for each in pinned_here() if not each.specifier.contains(version(each.name))]
    assert missing == []


@pytest.mark.long
@pytest.mark.beside
@pytest.mark.timeout(900)
def test_a_real_first_use(tmp_path: pathlib.Path) -> None:
    """With the package index that this machine is set up for: installs, runs, is complete, and then starts fast.

    Asks no other place for torch (ZDILOCO_TORCH_INDEX is empty), so without a wheel at hand the default build comes.
    """
    root, env = real_checkout(tmp_path)
    env["ZDILOCO_TORCH_INDEX"] = ""
    for _ in range(2):
        start = time.monotonic()
        command = [root / "bin" / "zdiloco", "demo", "two words"]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
        took = time.monotonic() - start
        assert (done.returncode, done.stdout) == (0, "['demo', 'two words']\n"), done.stderr
    assert took < 3.0
    assert done.stderr == ""
    python = root / ".venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "check"], env=env, check=True, capture_output=True, timeout=60)
    command = [python, "-c", "import torch, zmq, msgpack, msgspec, xxhash, safetensors, rich, click, matplotlib"]
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=60)
    command = [python, "-m", "pip", "list", "--format=freeze"]
    frozen = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60)
    have = {packaging.utils.canonicalize_name(line.partition("+")[0]) for line in frozen.stdout.splitlines()}
    wanted = [*pinned_here(), *(each for each in pinned_here("locks/torch.lock") if each.name == "torch")]
    assert {packaging.utils.canonicalize_name(f"{each.name}{each.specifier}") for each in wanted} <= have
