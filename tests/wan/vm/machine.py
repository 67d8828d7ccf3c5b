"""A small machine in software whose kernel has what this one's may lack: real `tc netem`.

Rule: it boots a Debian kernel that is unpacked and never installed, with this very file system, read only, as its own;
all it can write to is memory and one folder. So what runs in it is this checkout with this Python. It has no network
but what the program in it makes. It ends with the process that started it, and after `limit_s` in any case.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.accept.stage import ROOT

QEMU = "qemu-system-x86_64"
PACKAGES = "qemu-system-x86"
MEMORY_MB = 3072
PROCESSORS = "2"
MODULES = (
    "virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "netfs", "fscache",
    "9pnet", "9pnet_virtio", "9p", "veth", "sch_netem", "sch_tbf", "overlay",
)  # fmt: skip
"""In this order: each finds there what it needs."""
START = """#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /sys /dev /host
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
for module in {modules}; do $b insmod /modules/$module.ko || echo "no module $module"; done
root() {{ $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro root $1; }}
run() {{
    $b mount -t tmpfs -o mode=755 tmpfs /host/run
    $b mkdir -p /host/run/out /host/run/tmp
    $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576 out /host/run/out
}}
"""
ALONE = """root /host
run
for place in proc sys dev; do $b mount --bind /$place /host/$place; done
$b mkdir -p /host/dev/shm
$b mount -t tmpfs tmpfs /host/dev/shm
$b ip link set lo up
$b chroot /host {command} > /host/run/out/said 2>&1
echo $? > /host/run/out/code
$b sync
$b poweroff -f
"""
"""The program is all that runs."""
SYSTEMD = """$b mkdir -p /lower /upper
root /lower
$b mount -t tmpfs tmpfs /upper
$b mkdir /upper/files /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /host
run
for unit in {masked}; do $b ln -sf /dev/null /host/etc/systemd/system/$unit; done
$b cp /story.service /host/etc/systemd/system/
$b chmod 644 /host/etc/systemd/system/story.service
exec $b switch_root /host /lib/systemd/systemd --unit=story.service
"""
"""The first process is systemd, and the program a service of it; all files can be written to, in memory."""
MASKED = (
    "systemd-tmpfiles-setup.service", "systemd-tmpfiles-setup-dev.service", "systemd-udevd.service",
    "systemd-udev-trigger.service", "systemd-journal-flush.service",
)  # fmt: skip
"""Units that want devices or disks which such a machine has not."""
STORY = """[Unit]
DefaultDependencies=no
Requires=sysinit.target
After=sysinit.target
[Service]
Type=exec
ExecStart={command}
ExecStopPost=/bin/sh -c 'echo ${{EXIT_STATUS}} > /run/out/code; sync; systemctl poweroff --force --force'
StandardOutput=append:/run/out/said
StandardError=inherit
"""


def why_none() -> str:
    """Why there can be no such machine here, and what to do; empty: there can."""
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        return "the virtual machine is one of x86-64 Linux, as its host must be"
    if shutil.which(QEMU) is None:
        return f"the virtual machine wants {QEMU}: apt-get install {PACKAGES}"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "the kernel of the virtual machine is one of Debian's: it wants apt-get and dpkg-deb"
    return ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to boot, the folder with its modules, and a shell for its start."""

    image: Path
    modules: Path
    busybox: Path


def kernel_in(folder: Path) -> Kernel:
    """Fetch Debian's newest kernel and its static busybox into a folder, unless they are there."""
    root = folder / "root"
    if not root.exists():
        unfinished = folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            _download(unfinished)
        except AssertionError:
            _done(["apt-get", "-qq", "update"], unfinished)  # its lists are missing, or older than what lies there
            _download(unfinished)
        for deb in unfinished.glob("*.deb"):
            _done(["dpkg-deb", "-x", str(deb), "root"], unfinished)
            deb.unlink()
        (unfinished / "root").rename(root)
    (image,), (modules,) = root.glob("boot/vmlinuz-*"), root.glob("lib/modules/*")
    return Kernel(image, modules, root / "bin" / "busybox")


def _download(folder: Path) -> None:
    for package in (_newest_kernel(), "busybox-static"):
        _done(["apt-get", "-qq", "download", package], folder)


def _newest_kernel() -> str:
    told = _done(["apt-cache", "depends", "linux-image-amd64"], Path.cwd())
    found = re.search(r"Depends: (linux-image-\S+)", told)
    assert found, f"apt knows no kernel (apt-get update): {told}"
    return found[1]


def _done(words: Sequence[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()[-1000:]}"
    return done.stdout


# ---- what it starts from


def _entry(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> Iterator[bytes]:
    """One file of an archive in the format that kernels unpack (cpio, newc)."""
    title = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(title), 0)
    yield b"070701" + b"".join(b"%08X" % field for field in fields)
    yield title + bytes(-(110 + len(title)) % 4)
    yield data + bytes(-len(data) % 4)


def start_disk(kernel: Kernel, command: str, path: Path, *, systemd: bool) -> None:
    """Write what the kernel unpacks first: busybox, the modules, and what is to be done with this command."""
    rest = SYSTEMD.format(masked=" ".join(MASKED)) if systemd else ALONE.format(command=command)
    files = {
        "init": (START.format(modules=" ".join(MODULES)) + rest).encode(),
        "story.service": STORY.format(command=command).encode(),
        "bin/busybox": kernel.busybox.read_bytes(),
    }
    for module in MODULES:
        found = list(kernel.modules.rglob(f"{module}.ko"))
        assert found, f"{kernel.image.name} has no module {module}.ko"
        files[f"modules/{module}.ko"] = found[0].read_bytes()
    with path.open("wb") as out:
        for folder in ("bin", "modules", "dev"):
            out.writelines(_entry(folder, stat.S_IFDIR | 0o755))
        out.writelines(_entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)))
        for name, data in files.items():
            out.writelines(_entry(name, stat.S_IFREG | 0o755, data))
        out.writelines(_entry("TRAILER!!!", 0))


# ---- the machine


class Machine:
    """A machine at work on one program; what that writes to `/run/out` is in `out`, its words are in `out/said`."""

    def __init__(self, kernel: Kernel, module: str, folder: Path, *, systemd: bool) -> None:
        self.out, self._console = folder / "out", folder / "console"
        self.out.mkdir(parents=True)
        variables = {
            "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/run", "TMPDIR": "/run/tmp",
            "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE", "LANG": "C.UTF-8",
        }  # fmt: skip
        given = " ".join(f"{name}={value}" for name, value in variables.items())
        command = f"/usr/bin/env -i -C {ROOT} {given} {sys.executable} -m {module}"
        start_disk(kernel, command, folder / "start", systemd=systemd)
        shared = "local,security_model=none,multidevs=remap"
        words = [
            QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", PROCESSORS, "-m", str(MEMORY_MB),
            "-kernel", str(kernel.image), "-initrd", str(folder / "start"),
            "-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off",
            "-virtfs", f"{shared},path=/,mount_tag=root,readonly=on",
            "-virtfs", f"{shared},path={self.out},mount_tag=out",
            "-display", "none", "-serial", f"file:{self._console}", "-monitor", "none", "-nic", "none", "-no-reboot",
        ]  # fmt: skip
        with (folder / "qemu").open("wb") as said:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def wait(self, limit_s: float) -> None:
        """Wait until the program has ended; it must have ended with 0, and within `limit_s`."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the machine is not done after {limit_s:g} s\n{self.words}") from None
        code = self._read(self.out / "code").strip()
        assert code == "0", f"the program in the machine ended with {code or 'no code'}\n{self.words}"

    def told(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of its results, by case."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in map(json.loads, (self.out / "results").read_text(encoding="utf-8").splitlines()):
            found.setdefault(line["case"], []).append(line)
        return found

    @property
    def words(self) -> str:
        """The last of what its program and its kernel have said."""
        qemu = self._read(self._console.parent / "qemu")
        return f"{self._read(self.out / 'said')[-6000:]}\n--- console\n{self._read(self._console)[-2000:]}\n{qemu}"

    def _read(self, path: Path) -> str:
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def close(self) -> None:
        """End it as if its power failed; harmless when repeated."""
        self._process.kill()
        self._process.wait()


@contextmanager
def machine(kernel: Kernel, module: str, folder: Path, *, systemd: bool = False) -> Iterator[Machine]:
    """A machine at work on `python -m module`, alone or as a service of systemd; it is ended in any case."""
    made = Machine(kernel, module, folder, systemd=systemd)
    try:
        yield made
    finally:
        made.close()
