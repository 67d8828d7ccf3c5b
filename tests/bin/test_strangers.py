"""A stranger's machine: other systems, an installed torch, other shells; each in one clear line, or without a word."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.bin.conftest import LIMIT_S, ROOT, Checkout, real_checkout

pytestmark = pytest.mark.proc
SCRIPTS = sorted((ROOT / "bin").iterdir())
NOT_POSIX = {
    "bash only": r"\[\[|<<<|&>|\blocal\b|\bfunction\b|\bdeclare\b|\bpipefail\b|\bmapfile\b|\$\{\w+(,,|\^\^|//)|\w\+=",
    "GNU sed": r"\bsed\b[^|]* -(-|\w*[irz])",
    "GNU date": r"\bdate\b[^|]* (-d|-I|--|\+\S*%N)",
    "GNU grep": r"\bgrep\b[^|]* -(-|\w*[PozT])",
    "GNU readlink": r"\breadlink\b -|\brealpath\b",
    "GNU others": r"(?:^|[;|&(!]|\b(?:if|then|do|else)\b)\s*"
    r"(?:mktemp|tac|timeout|nproc|flock|seq|stat|sha256sum|md5sum|xargs|cp -\w*[ad]|ln -\w*r)\b",
}


def system(checkout: Checkout, name: str, machine: str) -> Checkout:
    """The checkout on another system, by what uname says."""
    checkout.fake("uname", f'#!/bin/sh\ncase "$1" in -m) echo {machine} ;; *) echo {name} ;; esac\n')
    return checkout


@pytest.mark.parametrize("name", ["MINGW64_NT-10.0-22631", "MSYS_NT-10.0", "CYGWIN_NT-10.0"])
@pytest.mark.parametrize("script", ["zdiloco", "test", "wan-lab"])
def test_windows_is_one_line(fit: Checkout, script: str, name: str) -> None:
    code, out, err = system(fit, name, "x86_64").run(str(fit.root / "bin" / script))
    assert (code, out, len(err)) == (1, "", 1)
    assert "Windows is not supported: run this in a Linux of WSL 2" in err[0]
    assert not (fit.root / ".venv").exists()


def test_macos_on_intel_is_one_line(fit: Checkout) -> None:
    code, out, err = system(fit, "Darwin", "x86_64").run()
    assert (code, out, len(err)) == (1, "", 1)
    assert "macOS on Intel: there is no torch 2.6 for it; use Apple silicon" in err[0]
    assert "ZDILOCO_USE_TORCH=installed" in err[0]
    assert fit.calls() == []


def test_macos_on_apple_silicon_takes_the_ordinary_build(fit: Checkout) -> None:
    """Nor does it ask for the CPU build of Linux."""
    code, _, _ = system(fit, "Darwin", "arm64").run(ZDILOCO_TORCH_INDEX="http://127.0.0.1:9/cpu")
    assert code == 0
    assert not any("127.0.0.1:9" in call for call in fit.calls())


@pytest.mark.parametrize("name", ["Linux", pytest.param("Darwin", marks=pytest.mark.slow)])
def test_an_installed_torch_is_used_and_none_is_fetched(fit: Checkout, name: str) -> None:
    """Also on Intel, where somebody may have built one; later uses need no word of it, also when versions change."""
    code, out, err = system(fit, name, "x86_64").run(ZDILOCO_USE_TORCH="installed")
    assert (code, out) == (0, "PASSIVE: top two words\n"), err
    assert "takes the torch that this Python has" in err[1]
    _, rest, own = fit.calls()
    assert rest.endswith(f"--no-deps --require-hashes -r {fit.root}/requirements.lock")
    assert "--no-deps" in own
    asked = (fit.root / "requirements.lock").read_text()
    assert "\ntorch==" not in asked
    assert "\npyzmq==" in asked
    (path,) = (fit.root / ".venv").glob("lib/python*/site-packages/zdiloco-torch.pth")
    assert (pathlib.Path(path.read_text().strip()) / "torch" / "__init__.py").exists()
    for use in ({}, {"ZDILOCO_USE_TORCH": "installed"}):
        assert fit.run(**use) == (0, "PASSIVE: top two words\n", [])
    with (fit.root / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    assert fit.run()[0] == 0
    calls = fit.calls()
    assert len(calls) == 2
    assert not any("locks/torch" in call for call in calls)
    assert path.exists()


def test_who_asks_for_the_other_torch_gets_it(fit: Checkout) -> None:
    """There and back: each time .venv is made anew."""
    fit.run()
    fit.calls()
    for use in ("installed", "fetched"):
        assert fit.run(ZDILOCO_USE_TORCH=use)[0] == 0
        assert fit.calls()[0] == "venv"
        assert (fit.root / ".venv" / ".torch").exists() == (use == "installed")


@pytest.mark.parametrize(("found", "says"), [("", "is Python 3.11.9,"), (" with torch 2.2.0", "with torch 2.2.0, and")])
def test_a_python_without_a_fit_torch_is_one_line(checkout: Checkout, found: str, says: str) -> None:
    checkout.fake("python3", f"#!/bin/sh\nprintf '3.11.9{found}'\nexit 5\n")
    code, _, err = checkout.run(ZDILOCO_USE_TORCH="installed")
    assert (code, len(err)) == (1, 1)
    assert says in err[0]
    assert "ZDILOCO_USE_TORCH=installed needs torch 2.6 or newer there" in err[0]


def test_another_word_for_the_torch_is_one_line(fit: Checkout) -> None:
    code, _, err = fit.run(ZDILOCO_USE_TORCH="system")
    assert (code, len(err)) == (1, 1)
    assert "ZDILOCO_USE_TORCH is 'system': allowed is 'installed', 'fetched', or nothing" in err[0]


def test_help_needs_nothing_and_names_what_can_be_set(checkout: Checkout) -> None:
    """Once there is a .venv the command itself answers."""
    for script in ("zdiloco", "test"):
        code, out, err = checkout.run(str(checkout.root / "bin" / script), "--help")
        assert (code, err) == (0, [])
        assert all(name in out for name in ("ZDILOCO_PYTHON", "ZDILOCO_USE_TORCH", "ZDILOCO_TORCH_INDEX"))
    assert not (checkout.root / ".venv").exists()


def test_help_is_the_commands_own_once_it_is_there(fit: Checkout) -> None:
    fit.run()
    assert fit.run(str(fit.root / "bin" / "zdiloco"), "--help") == (0, "PASSIVE: --help\n", [])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_keep_to_posix(path: pathlib.Path) -> None:
    """bash 3.2 and the tools of BSD: nothing that only newer or other ones know."""
    text = re.sub(r"<<'TEXT'.*?^TEXT$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"-c '\n.*?^'", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    faults = [(what, line) for line in lines for what, pattern in NOT_POSIX.items() if re.search(pattern, line)]
    assert faults == []
    assert len(lines) > 10


def test_what_is_not_posix_is_found() -> None:
    wrong = ["[[ a ]]", "sed -i s/a/b/ f", "date +%s%N", "grep -oP x", "readlink -f x", "a+=b", "  local a"]
    wrong += ["timeout 3 x", "if stat x; then", "cp -a x y"]
    assert all(any(re.search(pattern, line) for pattern in NOT_POSIX.values()) for line in wrong)


def wanted(name: str) -> str:
    """Where this program is. Without it the test is skipped; not in CI, which installs it."""
    where = shutil.which(name)
    if where is None and os.environ.get("CI"):
        pytest.fail(f"{name} is missing, which .ci/run should have installed")
    return where or pytest.skip(f"this machine has no {name}")


@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh", "mksh", "zsh --emulate sh"])
def test_other_shells_run_the_scripts(fit: Checkout, shell: str) -> None:
    name, *options = shell.split()
    where = wanted(name)
    assert fit.run(where, *options, str(fit.root / "bin" / "zdiloco"), "x")[:2] == (0, "PASSIVE: x\n")
    code, out, _ = fit.run(where, *options, str(fit.root / "bin" / "wan-lab"), "show")
    assert (code, out) == (0, f"PASSIVE: show, with {fit.root}/.venv/bin/zdiloco\n")


def test_shellcheck_finds_nothing() -> None:
    where = wanted("shellcheck")
    command = [where, "-s", "sh", "-x", "-e", "SC2154", *map(str, SCRIPTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout


def test_a_python_that_has_gone_is_noticed(fit: Checkout) -> None:
    """An update of the system takes it away: .venv/bin/python leads nowhere, and .venv is made anew."""
    fit.run()
    fit.calls()
    python = fit.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    assert fit.run()[0] == 0
    assert fit.calls()[0] == "venv"
    assert os.access(python, os.X_OK)


@pytest.mark.slow
@pytest.mark.beside
@pytest.mark.timeout(600)
def test_a_real_first_use_of_an_installed_torch(tmp_path: pathlib.Path) -> None:
    """That of the Python of these tests, an environment itself; two commands at once, of which one builds."""
    root, env = real_checkout(tmp_path)
    env |= {"ZDILOCO_USE_TORCH": "installed", "ZDILOCO_PYTHON": sys.executable}
    command = [root / "bin" / "zdiloco", "two words"]
    started = [
        subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=500) for process in started]
    assert [(process.returncode, out) for process, (out, _) in zip(started, ended, strict=True)] == [
        (0, "['two words']\n")
    ] * 2, ended
    assert sum("fetches about 140 MB" in err for _, err in ended) == 1
    where = "import torch, zmq; print(torch.__file__); print(zmq.__file__)"
    python = root / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-c", where], env=env, check=True, capture_output=True, text=True, timeout=60)
    torch, zmq = done.stdout.splitlines()
    assert not torch.startswith(str(root))
    assert zmq.startswith(str(root))
