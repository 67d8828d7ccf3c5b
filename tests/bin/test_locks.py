"""The locks: every package once, at one version, with the sums of its files; all that pyproject.toml asks for."""

import itertools
import pathlib
import subprocess
import sys
import tomllib

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.bin.conftest import LIMIT_S, ROOT
from tests.bin.locks import SHIPPED, Pin, pins

FETCHED = ("requirements.lock", "locks/torch.lock")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_pin_is_exact_and_has_its_sums(name: str) -> None:
    """And stands once; sums are those of different files."""
    found = pins(name)
    assert len(found) >= 1
    assert [each for each in found if len(each.asked.specifier) != 1 or "*" in each.version] == []
    assert [each for each in found if not each.sums or len(set(each.sums)) != len(each.sums)] == []
    names = [canonicalize_name(each.asked.name) for each in found]
    assert len(names) == len(set(names))


def test_the_locks_hold_what_pyproject_asks_for() -> None:
    """Every dependency inside its range, and its reason is written down."""
    have = {canonicalize_name(each.asked.name): each for name in FETCHED for each in pins(name)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    reasons = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()
    for text in [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(have[canonicalize_name(wanted.name)].version), text
        assert f"`{wanted.name}`" in reasons, wanted.name


def test_the_two_builds_of_torch_are_one_version() -> None:
    """The build for CPU is pinned as that, so that the default one is not taken for it."""
    (cpu,) = pins("locks/torch-cpu.lock")
    (default,) = [each for each in pins("locks/torch.lock") if each.asked.name == "torch"]
    assert cpu.version == f"{default.version}+cpu"
    assert set(cpu.sums).isdisjoint(default.sums)
    assert not any(each.asked.name == "torch" for each in pins("requirements.lock"))


def applies(pin: Pin, **machine: str) -> bool:
    environment = {**default_environment(), **machine}
    return pin.asked.marker is None or pin.asked.marker.evaluate(environment)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize(("system", "machine"), [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")])
def test_the_same_packages_are_for_every_python(version: str, system: str, machine: str) -> None:
    """Nothing that is asked for at all is left out on a Python or system that is told to work, but for atheris."""
    here = {"sys_platform": system, "platform_machine": machine, "python_version": version}
    here |= {"python_full_version": f"{version}.1", "platform_system": system.capitalize()}
    have = {canonicalize_name(each.asked.name) for name in FETCHED for each in pins(name) if applies(each, **here)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {canonicalize_name(Requirement(text).name) for text in [*project["dependencies"], *extras["dev"]]}
    assert wanted <= have
    assert ("nvidia-nccl-cu13" in have) == (system == "linux")
    assert ("atheris" in have) == (machine == "x86_64")


@pytest.mark.slow
@pytest.mark.beside
@pytest.mark.proc
def test_a_file_with_another_sum_is_not_installed(tmp_path: pathlib.Path) -> None:
    """What bin/venv.sh has pip do with a lock: one digit of a sum changed, and nothing is installed."""
    (pin,) = [each for each in pins("requirements.lock") if each.asked.name == "mdurl"]
    venv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--require-hashes"]
    for changed, code in ((False, 0), (True, 1)):
        sums = [each if not changed else ("0" if each[0] != "0" else "1") + each[1:] for each in pin.sums]
        text = " \\\n    ".join([f"mdurl=={pin.version}", *(f"--hash=sha256:{each}" for each in sums)])
        (tmp_path / "lock").write_text(text + "\n")
        place = tmp_path / f"installed-{code}"
        command = [*venv, "--target", str(place), "-r", str(tmp_path / "lock")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == code, done.stderr
        assert (place / "mdurl").exists() != changed
    assert "DO NOT MATCH THE HASHES" in done.stderr
