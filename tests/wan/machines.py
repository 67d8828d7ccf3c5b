"""Machines for a page of instructions: each with a root of its own over this one's, its own processes and network.

Rule: what a machine writes goes into memory and ends with it; a machine ends when its first process does, and with it
all that ran there, its mounts and its end of the link. Wants root, namespaces and overlayfs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from zdiloco.wanlab.namespaces import ip

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 200.0
_BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
echo up
exec chroot "$1/root" sleep infinity
"""


class Machine:
    """One machine; `close` ends all of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.namespace = f"zdiloco-{os.getpid()}-{name}"
        folder.mkdir()
        ip("netns", "add", self.namespace)
        command = ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--pid", "--fork", "--kill-child"]
        self.first = subprocess.Popen(
            [*command, "sh", "-c", _BOOT, "sh", str(folder)], stdout=subprocess.PIPE, start_new_session=True
        )
        self.terminals: list[subprocess.Popen[str]] = []
        try:
            assert self.first.stdout
            assert self.first.stdout.readline() == b"up\n", f"{name}: no root of its own"
            (child,) = Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text().split()
            self.pid = int(child)
        except BaseException:
            self.close()
            raise

    def words(self) -> list[str]:
        """What is put before a command to run it here."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--root", "env", "-C", "/root"]

    def type(self, text: str, limit_s: float = LIMIT_S) -> tuple[int, str]:
        """Type a block into a shell; return its exit code, and what it has said."""
        done = subprocess.run(
            [*self.words(), "bash", "-eu"], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=limit_s, env=self.environment(), check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def terminal(self, text: str, log: Path) -> subprocess.Popen[str]:
        """Type one command into a terminal of its own, where it stays; what it says goes into `log`, which is ours."""
        with log.open("w") as out:
            started = subprocess.Popen(
                [*self.words(), "bash", "-euc", f"exec {text}"], stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, text=True, env=self.environment(),
            )  # fmt: skip
        self.terminals.append(started)
        return started

    def environment(self) -> dict[str, str]:
        """That of a login, whatever these tests were started with; one thread a process, as cores are few."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}

    def file(self, path: str) -> Path:
        """Where a file of this machine is for us."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def install(self, place: str) -> None:
        """Put this checkout into a folder of the machine, with an environment that is ready: that of these tests.

        So nothing is fetched, and what runs is the code in that folder. The scripts of bin/ take it for their own.
        """
        names = ["bin", "config", "locks", "zdiloco", "pyproject.toml", "requirements.lock"]
        for name in names:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            self.file(place).mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, self.file(place) / name)
        venv = self.file(place) / ".venv"
        site = Path(sysconfig.get_path("purelib"))
        (venv / "bin").mkdir(parents=True)
        (venv / "lib" / site.parent.name).mkdir(parents=True)
        (venv / "lib" / site.parent.name / "site-packages").symlink_to(site)
        (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
        (venv / "bin" / "python").symlink_to(Path(sys.executable).resolve())
        script = f"#!{place}/.venv/bin/python\nimport sys\nsys.path.insert(0, '{place}')\n"
        (venv / "bin" / "zdiloco").write_text(script + "from zdiloco.cli.main import main\nsys.exit(main())\n")
        (venv / "bin" / "zdiloco").chmod(0o755)
        code, made = self.type(f'root={place}; . {place}/bin/venv.sh; echo "ready $(venv_sum) $root"\n')
        assert code == 0, made
        (venv / ".zdiloco").write_text(made)

    def status(self, endpoint: str) -> dict[str, Any] | None:
        """What `zdiloco status --json` says; None: nobody answers."""
        code, said = self.type(f"zdiloco status {endpoint} --keys /etc/zdiloco/keys --json 2>/dev/null\n")
        return json.loads(said) if code == 0 else None

    def close(self) -> None:
        """End the machine's first process, and with it all others."""
        for each in (self.first, *self.terminals):
            if each.poll() is None:
                each.send_signal(signal.SIGKILL)
            each.wait(30)
        if self.first.stdout:
            self.first.stdout.close()
        ip("netns", "del", self.namespace)


def join(left: Machine, right: Machine, addresses: tuple[str, str]) -> None:
    """Lay a link between two machines."""
    ip("-n", left.namespace, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", right.namespace)
    for machine, address in zip((left, right), addresses, strict=True):
        ip("-n", machine.namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", machine.namespace, "link", "set", device, "up")
