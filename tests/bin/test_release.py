"""A release: what is in wheel and sdist, what they are made of, and when there is none.

Rule: one trial release, by one test, as it takes a minute. When it is refused is asked of tools of straw.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version

import pytest
from packaging.utils import canonicalize_name

from tests.bin.conftest import LIMIT_S, ROOT
from tests.bin.locks import pins
from zdiloco.version import VERSION

pytestmark = [pytest.mark.proc, pytest.mark.beside]
RELEASE_LIMIT_S = 700


def tracked(*folders: str) -> set[str]:
    """The files of the checkout that a release holds: known to git or new, and there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.mark.slow
@pytest.mark.timeout(RELEASE_LIMIT_S + 60)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is made of a checkout of git")
def test_a_trial_release(tmp_path: pathlib.Path) -> None:
    """Making one has installed the wheel and run it in a folder elsewhere; then what lies there is looked at."""
    made = tmp_path / "made"
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    env["TMPDIR"] = str(tmp_path)
    command = [ROOT / "bin" / "release", "--trial", "--no-audit", made]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RELEASE_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "NOT audited" in done.stderr
    the_folder_holds_files_with_their_sums(made)
    the_wheel_is_the_package_and_nothing_else(next(made.glob("*.whl")))
    the_sdist_is_the_checkout_and_tests_itself(next(made.glob("*.tar.gz")), tmp_path)
    the_sbom_names_what_was_installed(made / f"zdiloco-{VERSION}.cdx.json")


def the_folder_holds_files_with_their_sums(made: pathlib.Path) -> None:
    names = {path.name for path in made.iterdir()}
    stem = f"zdiloco-{VERSION}"
    assert names == {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz", f"{stem}.cdx.json", "SHA256SUMS"}
    sums = dict(reversed(line.split("  ")) for line in (made / "SHA256SUMS").read_text().splitlines())
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.iterdir()}
    assert sums == {name: digest for name, digest in files.items() if name != "SHA256SUMS"}


def the_wheel_is_the_package_and_nothing_else(place: pathlib.Path) -> None:
    """With the data that it reads; profiles of the lab under the names that they have in config/."""
    with zipfile.ZipFile(place) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        profile = wheel.read("zdiloco/wanlab/profiles/us-4-region.toml")
    profiles = {f"zdiloco/wanlab/profiles/{path.name}" for path in (ROOT / "config" / "wan").glob("*.toml")}
    assert held == tracked("zdiloco") | profiles
    assert profile == (ROOT / "config" / "wan" / "us-4-region.toml").read_bytes()


def the_sdist_is_the_checkout_and_tests_itself(place: pathlib.Path, folder: pathlib.Path) -> None:
    """All that git has is in it; tests that need nothing but the files pass in it."""
    with tarfile.open(place) as sdist:
        if hasattr(tarfile, "data_filter"):  # Debian's Python 3.11 is older than it; later ones ask for it
            sdist.extraction_filter = tarfile.data_filter
        sdist.extractall(folder)
    root = folder / f"zdiloco-{VERSION}"
    held = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert tracked() - held == set()
    assert os.access(root / "bin" / "zdiloco", os.X_OK)
    names = ["tests/test_floors.py", "tests/test_config.py", "tests/bin/test_locks.py", "tests/wanlab/test_profile.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout


def the_sbom_names_what_was_installed(place: pathlib.Path) -> None:
    """In the versions of the lock, all that the wheel needs, and no tool."""
    told = json.loads(place.read_text())
    assert (told["bomFormat"], told["metadata"]["component"]["name"]) == ("CycloneDX", "zdiloco")
    held = {canonicalize_name(each["name"]): each["version"] for each in told["components"]}
    locked = {canonicalize_name(each.asked.name): each.version for each in pins("requirements.lock")}
    assert {"torch", "pyzmq", "numpy", "msgspec", "click", "matplotlib"} <= set(held)
    assert {name: each for name, each in held.items() if locked.get(name, each) != each} == {}
    assert held["torch"].partition("+")[0] == version("torch").partition("+")[0]
    assert not {"pytest", "mypy", "twine"} & set(held)


# ---- when there is none: a small checkout of git, and tools of straw


@pytest.fixture
def straw(tmp_path: pathlib.Path) -> pathlib.Path:
    """A committed checkout whose tools are there: pip-audit writes $FOUND, and the build always fails."""
    root = tmp_path / "a checkout"
    for name in ("bin", "locks"):
        shutil.copytree(ROOT / name, root / name)
    (root / "zdiloco").mkdir()
    shutil.copy(ROOT / "zdiloco" / "version.py", root / "zdiloco")
    for name in ("pyproject.toml", "requirements.lock", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, root)
    with (root / "CHANGELOG.md").open("a") as log:
        log.write(f"## {VERSION} (2026-12-24)\n")
    tools = root / "build" / "tools" / "bin"
    tools.mkdir(parents=True)
    (tools / "python").write_text(
        f'#!/bin/sh\n[ "$1" = -I ] && exec {sys.executable} "$@"\necho "straw does not build"\nexit 1\n'
    )
    (tools / "pip-audit").write_text(
        '#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\necho "$*" >>"$CALLS"\n'
        '[ -z "$FOUND" ] || echo "$FOUND" >"$2"\necho "the index is away"\nexit 1\n'
    )
    for path in tools.iterdir():
        path.chmod(0o755)
    sums = f'cat "{root}/locks/release.lock" "{root}/bin/tools.sh" | cksum'
    made = subprocess.run(["sh", "-c", sums], capture_output=True, text=True, check=True).stdout.strip()
    (tools.parent / ".zdiloco").write_text(f"{made} {root}\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], cwd=root, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
    return root


def release(root: pathlib.Path, *options: str, found: object = None) -> tuple[int, str]:
    """Run bin/release; return its exit code and the last line of what it says."""
    text = json.dumps(found) if found is not None else ""
    env = {**os.environ, "FOUND": text, "CALLS": str(root.parent / "calls"), "TMPDIR": str(root.parent)}
    command = [root / "bin" / "release", *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout == ""
    assert not list((root / "dist").glob("*"))
    return done.returncode, "\n".join(done.stderr.splitlines()[-2:])


CLEAN = {"dependencies": [{"name": "a", "version": "1", "vulns": []}]}


def test_what_nobody_could_look_up_is_no_clean_bill(straw: pathlib.Path) -> None:
    """An auditor without a word, one that has skipped packages, and one that has found something: no release."""
    code, said = release(straw)
    assert (code, "nobody could be asked: the index is away" in said) == (1, True), said
    skipped = {"dependencies": [*CLEAN["dependencies"], {"name": "b", "skip_reason": "not found"}]}
    code, said = release(straw, found=skipped)
    assert (code, "1 of 2 packages could not be looked up: b" in said) == (1, True), said
    assert "--no-audit if it must be" in said
    known = {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1"}]}]}
    code, said = release(straw, found=known)
    assert (code, "known vulnerabilities: a 1: PYSEC-1" in said) == (1, True), said


def test_a_clean_bill_and_an_explicit_word_let_it_go_on(straw: pathlib.Path) -> None:
    """It then builds, which straw cannot; both locks were asked about, with what is accepted."""
    for options, found in (((), CLEAN), (("--no-audit",), None), (("--accept", "PYSEC-1", "--accept", "B-2"), CLEAN)):
        code, said = release(straw, *options, found=found)
        assert (code, "straw does not build" in said) == (1, True), said
    calls = (straw.parent / "calls").read_text().splitlines()
    assert len(calls) == 4
    assert "--ignore-vuln PYSEC-1 --ignore-vuln B-2 --requirement requirements.lock" in calls[2]
    assert calls[3].endswith("--requirement locks/torch.lock")


def test_a_release_is_made_of_a_commit_that_the_changelog_knows(straw: pathlib.Path) -> None:
    """Uncommitted changes, a missing heading, two versions, a folder with something in it, a wrong option."""
    (straw / "new").touch()
    code, said = release(straw)
    assert (code, "changes that are not committed" in said) == (1, True), said
    (straw / "new").unlink()
    (straw / "full").mkdir()
    (straw / "full" / "old.whl").touch()
    code, said = release(straw, "--trial", str(straw / "full"))
    assert (code, "full is not empty" in said) == (1, True), said
    (straw / "CHANGELOG.md").write_text("## Unreleased\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-a", "-m", "no heading"]
    subprocess.run(["git", "add", "-A"], cwd=straw, check=True, timeout=LIMIT_S)
    subprocess.run(git, cwd=straw, check=True, timeout=LIMIT_S)
    code, said = release(straw)
    assert (code, f"no heading for {VERSION}" in said) == (1, True), said
    (straw / "zdiloco" / "version.py").write_text('VERSION = "9.9"\n')
    assert "different versions" in release(straw, "--trial")[1]
    code, said = release(straw, "--fast")
    assert (code, "unknown option --fast" in said) == (2, True)
