"""A small copy of the checkout, with a Python and a pip of straw, for the tests of the scripts: no network.

Rule: PATH holds nothing but the tools that the scripts may use and the fakes of the test. A fake Python answers `-c`
with the real one, makes straw environments, and lets the test say what its pip does.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
TOOLS = (
    *("sh", "bash", "env", "cat", "cksum", "cp", "date", "dirname", "grep", "mkdir", "mv", "readlink", "rm", "sed"),
    *("tail", "touch", "uname"),
)
LIMIT_S = 120

FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
    -c*) exec "$REAL_PYTHON" "$@" ;;
    "-m zdiloco.cli.wanlab") shift 2 && echo "$OMP_WAIT_POLICY: $*, with $(command -v zdiloco)" ;;
    --version*) echo "Python 3.11.9" ;;
    "-m venv")
        echo "venv" >>"$FAKE_LOG"
        for last; do :; done
        mkdir -p "$last/bin" "$last/lib/python3.11/site-packages"
        touch "$last/pyvenv.cfg" && cp "$0" "$last/bin/python"
        ;;
    "-m pip")
        echo "pip $*" >>"$FAKE_LOG"
        eval "$FAKE_PIP"
        printf '#!/bin/sh\\necho "$OMP_WAIT_POLICY: $*"\\n' >"${0%/*}/zdiloco"
        "$REAL_CHMOD" +x "${0%/*}/zdiloco"
        ;;
esac
"""
OLD_PYTHON = "#!/bin/sh\nprintf 3.9.2\nexit 3\n"
BARE_PYTHON = "#!/bin/sh\nprintf 3.11.2\nexit 4\n"
NO_WHEEL = 'case "$*" in *--no-index*) exit 1 ;; esac\n'
NO_NETWORK = NO_WHEEL + "echo \"broken by 'NewConnectionError(...)'\"; exit 1"
GATE = 'case "$*" in *--no-index*) read -r _ <"$GATE" ;; esac'


@dataclasses.dataclass(kw_only=True)
class Checkout:
    """A copy of the scripts with a PATH of its own; `run` starts one of them and waits."""

    root: pathlib.Path
    path: pathlib.Path
    log: pathlib.Path
    env: dict[str, str]

    def fake(self, name: str, text: str) -> None:
        """Put an executable on PATH, in the place of what was there by this name."""
        (self.path / name).unlink(missing_ok=True)  # it may be a link to the real tool
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def start(self, *command: str, **env: str) -> subprocess.Popen[str]:
        """Start a command in a session of its own."""
        return subprocess.Popen(
            command or [self.root / "bin" / "zdiloco", "top", "two words"],
            env=self.env | env,
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, **env: str) -> tuple[int, str, list[str]]:
        """Run a command; return its exit code, its output, and the lines of its standard error."""
        process = self.start(*command, **env)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err.splitlines()

    def calls(self) -> list[str]:
        """Return what the fake Python was asked to do since the last call of this."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> Checkout:
    """A checkout in a folder with a space in its name, and a PATH without any Python."""
    root, path = tmp_path / "a checkout", tmp_path / "path"
    path.mkdir()
    for name in ("bin", "locks"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, root)
    for tool in TOOLS:
        if where := shutil.which(tool):
            (path / tool).symlink_to(where)
    env = {"PATH": str(path), "HOME": str(tmp_path), "FAKE_LOG": str(tmp_path / "calls"), "FAKE_PIP": ":"}
    env |= {"REAL_PYTHON": sys.executable, "REAL_CHMOD": shutil.which("chmod") or "chmod", "ZDILOCO_TORCH_INDEX": ""}
    return Checkout(root=root, path=path, log=tmp_path / "calls", env=env)


@pytest.fixture
def fit(checkout: Checkout) -> Checkout:
    """The checkout with a fit (straw) Python."""
    checkout.fake("python3.11", FAKE_PYTHON)
    return checkout


def real_checkout(folder: pathlib.Path) -> tuple[pathlib.Path, dict[str, str]]:
    """A checkout whose package does next to nothing, for real installations; and the environment of who uses it."""
    root = folder / "a checkout"
    for name in ("bin", "locks"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("pyproject.toml", "requirements.lock", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, root)
    (root / "zdiloco" / "cli").mkdir(parents=True)
    (root / "zdiloco" / "__init__.py").touch()
    (root / "zdiloco" / "cli" / "main.py").write_text("import sys\n\n\ndef main():\n    print(sys.argv[1:])\n")
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return root, env
