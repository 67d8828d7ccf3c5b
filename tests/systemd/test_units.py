"""The units as `bin/install-service` installs them: systemd finds nothing to say, and little to reach from them.

Rule: `systemd-analyze verify` exits with 0 whatever it has to complain of, so not one line of it is let through.
"""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from zdiloco.doctor.finding import CHECKS

ROOT = pathlib.Path(__file__).parent.parent.parent
PLACE = ROOT / "config" / "systemd"
UNITS = ("zdiloco-sync.service", "zdiloco-relay.service", "zdiloco-learner@.service")
MOST_EXPOSED = 2.0
"""What `systemd-analyze security` may say: 0 is shut off, 10 wide open."""
COMMAND = "/usr/bin/env"
"""An executable that every machine has at a place that services can see."""
LIMIT_S = 60.0
HERE = shutil.which("systemd-analyze") is not None

pytestmark = [
    pytest.mark.proc,
    pytest.mark.beside,
    pytest.mark.skipif(not HERE and not os.environ.get("CI"), reason="no systemd-analyze: apt install systemd"),
]


def run(*words: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    """What a command says, within a limit."""
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def install(root: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Install into a tree of its own."""
    return run(ROOT / "bin" / "install-service", "--root", root, "--exec", COMMAND, *words)


@pytest.fixture
def units(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the installed units."""
    done = install(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path / "etc" / "systemd" / "system"


def complaints(unit: pathlib.Path) -> str:
    """Whatever systemd has to say against a unit."""
    done = run("systemd-analyze", "verify", "--man=no", unit)
    return done.stdout + done.stderr + (f"exit code {done.returncode}" if done.returncode else "")


@pytest.mark.parametrize("name", UNITS)
def test_systemd_has_nothing_to_say(units: pathlib.Path, name: str) -> None:
    assert complaints(units / name) == ""


WRONG: dict[str, Callable[[str], str]] = {
    "an unknown key": lambda text: text.replace("PrivateTmp=", "PrivateTemp="),
    "a bad value": lambda text: text.replace("WatchdogSec=60", "WatchdogSec=soon"),
    "a command that is not there": lambda text: text.replace(COMMAND, "/nowhere/zdiloco"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_unit_is_seen(units: pathlib.Path, fault: str) -> None:
    """Two of these leave the exit code at 0."""
    unit = units / UNITS[0]
    text = unit.read_text()
    unit.write_text(WRONG[fault](text))
    assert unit.read_text() != text
    assert complaints(unit) != ""


@pytest.mark.parametrize("name", UNITS)
def test_little_can_be_reached_from_a_service(units: pathlib.Path, name: str) -> None:
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED * 10:.0f}", units / name)
    said = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert said, done.stderr
    print(f"{name}: exposure {said[1]}, at most {MOST_EXPOSED}")
    assert done.returncode == 0, done.stdout
    assert float(said[1]) <= MOST_EXPOSED


def settings(name: str) -> dict[str, list[str]]:
    """The keys of a unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in (PLACE / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", UNITS)
def test_wrong_settings_are_not_tried_again(name: str) -> None:
    """2 is wrong usage; who tries that again floods the journal."""
    unit = settings(name)
    assert (unit["Type"], unit["Restart"]) == (["notify"], ["on-failure"])
    assert "2" in unit["RestartPreventExitStatus"][0].split()
    assert "1" not in unit["RestartPreventExitStatus"][0].split()


@pytest.mark.parametrize("name", UNITS[:2])
def test_a_reload_is_sighup(name: str) -> None:
    assert settings(name)["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_the_kernel_is_set_as_the_doctor_says() -> None:
    """Every net.ipv4 key that a fix of `zdiloco doctor` sets on a long road is set, and the other way round."""
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string("[sysctl]\n" + (PLACE / "zdiloco-sysctl.conf").read_text())
    ours = {key.lstrip("-"): value for key, value in parser["sysctl"].items()}
    told = {name: fix for name, fix in doctor_fixes().items() if name != "net.ipv4.tcp_mtu_probing"}  # for broken paths
    assert {*ours} == {*told, "net.core.default_qdisc"}
    for name, fix in told.items():
        if "BYTES" not in fix and "{" not in fix:
            assert fix.endswith(f"{name}={ours[name]}"), name


def doctor_fixes() -> dict[str, str]:
    """What the doctor would have one set: the kernel's name, and the command."""
    fixes = [check.fix for check in CHECKS.values()]
    return {found[1]: fix for fix in fixes if (found := re.search(r"sysctl -w (net\.ipv4\.\w+)", fix))}
