"""`bin/install-service` into a tree of its own: what it says, what it leaves there, and what it leaves alone."""

import os
import pathlib
import shutil
import stat
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
SCRIPT = ROOT / "bin" / "install-service"
COMMAND = "/usr/bin/env"
"""An executable that every machine has at a place that services can see."""
LIMIT_S = 60.0
INSTALLED = {
    "etc/systemd/system/zdiloco-sync.service",
    "etc/systemd/system/zdiloco-relay.service",
    "etc/systemd/system/zdiloco-learner@.service",
    "etc/sysusers.d/zdiloco.conf",
    "etc/tmpfiles.d/zdiloco.conf",
    "etc/sysctl.d/60-zdiloco.conf",
    "etc/zdiloco/run.toml",
}

pytestmark = [pytest.mark.proc, pytest.mark.beside]


def call(root: pathlib.Path, *words: str) -> tuple[int, list[str], str]:
    """Exit code, lines of standard output, and standard error."""
    command = [str(SCRIPT), "--root", str(root), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def files(root: pathlib.Path) -> dict[str, str]:
    """Every file below, with what is in it."""
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_a_dry_run_tells_all_and_does_nothing(tmp_path: pathlib.Path) -> None:
    code, said, errors = call(tmp_path, "--exec", COMMAND, "--dry-run")
    assert (code, errors) == (0, "")
    assert {line.split(f"{tmp_path}/")[1] for line in said if line.startswith("install ")} == INSTALLED
    assert list(tmp_path.iterdir()) == []


def test_what_is_installed_names_this_checkout_and_the_command(tmp_path: pathlib.Path) -> None:
    code, _, errors = call(tmp_path, "--exec", COMMAND)
    assert (code, errors) == (0, "")
    there = files(tmp_path)
    assert {*there} == INSTALLED
    for name, text in there.items():
        assert "/opt/zdiloco" not in text, name
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o644, name
    assert (
        f"ExecStart={COMMAND} sync /etc/zdiloco/run.toml $ARGUMENTS\n"
        in there["etc/systemd/system/zdiloco-sync.service"]
    )
    assert (tmp_path / "etc/zdiloco/keys").is_dir()


def test_settings_and_keys_are_never_touched(tmp_path: pathlib.Path) -> None:
    """Not by the first installation, not by a second one, and not at the end."""
    mine = {"etc/zdiloco/run.toml": "# mine\n", "etc/zdiloco/keys/syncer.key_secret": "secret\n"}
    for name, text in mine.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["--exec", COMMAND], ["--exec", COMMAND], ["--uninstall"]):
        code, _, errors = call(tmp_path, *words)
        assert (code, errors) == (0, "")
        there = files(tmp_path)
        assert {name: there[name] for name in mine} == mine
    assert there == mine


def test_what_was_installed_is_taken_away(tmp_path: pathlib.Path) -> None:
    call(tmp_path, "--exec", COMMAND)
    before = files(tmp_path)
    code, said, errors = call(tmp_path, "--uninstall", "--dry-run")
    assert (code, errors, files(tmp_path)) == (0, "", before)
    assert len([line for line in said if line.startswith("remove ")]) >= len(INSTALLED)
    assert call(tmp_path, "--uninstall")[0] == 0
    assert files(tmp_path) == {}
    assert not (tmp_path / "etc/zdiloco").exists()
    assert call(tmp_path, "--uninstall")[::2] == (0, "")


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root gives files to somebody else")
@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None and not os.environ.get("CI"), reason="no systemd-tmpfiles")
def test_keys_that_root_has_made_become_the_services(tmp_path: pathlib.Path) -> None:
    """The user and the folders are made as at a start of the machine, twice: the second changes nothing."""
    call(tmp_path, "--exec", COMMAND)
    keys = tmp_path / "etc/zdiloco/keys"
    for name in ("syncer.key", "syncer.key_secret", "allowed.toml"):
        (keys / name).touch(mode=0o644)
    for _ in range(2):
        for command in (["systemd-sysusers"], ["systemd-tmpfiles", "--create"]):
            words = [*command, f"--root={tmp_path}", "zdiloco.conf"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert done.returncode == 0, done.stderr
        user = int((tmp_path / "etc/passwd").read_text().split(":")[2])
        assert owned(keys / "syncer.key_secret") == (user, 0o600)
        assert owned(keys / "syncer.key") == (user, 0o644)
        assert owned(keys / "allowed.toml") == (user, 0o640)
        assert owned(keys) == (0, 0o750)
        assert owned(tmp_path / "var/lib/zdiloco") == (user, 0o750)
        assert owned(tmp_path / "etc/zdiloco/run.toml") == (0, 0o644)


def owned(path: pathlib.Path) -> tuple[int, int]:
    """Whose it is, and its mode."""
    return path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--exec", "/nowhere/zdiloco"], "/nowhere/zdiloco cannot be run"),
        (["--exec", "bin/sh"], "cannot be run"),
        (["--fast"], "unknown option --fast"),
        (["--exec"], "--exec wants a place"),
        (["--root", "/nowhere"], "--root must be a folder that exists"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: pathlib.Path, words: list[str], told: str) -> None:
    code, said, errors = call(tmp_path, *words)
    assert (code, said, errors.count("\n")) == (2, [], 1)
    assert told in errors
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_services_cannot_see_is_refused(tmp_path: pathlib.Path) -> None:
    """ProtectHome and PrivateTmp hide where people often have a checkout; a path is no place for quoting, either."""
    odd = tmp_path / "a b"
    odd.write_text("#!/bin/sh\n")
    odd.chmod(0o755)
    code, _, errors = call(tmp_path, "--exec", str(odd))
    assert code == 2
    assert "have a checkout and its Python in /opt" in errors or "of letters, digits" in errors
