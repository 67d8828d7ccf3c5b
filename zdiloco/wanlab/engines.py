"""The two ways to make a link: by the kernel's `netem` and `tbf`, or by `tbf` and a process between two TUN devices.

Rule: both do the same to a packet: it waits in a queue for the rate, which drops what would wait too long, and then
travels or is lost. Both ends of a link have the same device name; a namespace that goes takes its end along.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from zdiloco.errors import LabError
from zdiloco.wanlab.link import TUN
from zdiloco.wanlab.namespaces import ip, tc
from zdiloco.wanlab.profile import Traits

ENGINES = ("netem", "tun")
MTU = 1500
BURST_S, BURST_BYTES = 0.002, 3200
"""What may go at once: so much of the rate's time, and at least two packets."""
SMALL_PACKET = 200
"""Bytes a packet has at least, by which netem's queue is counted; a smaller one finds it full a little earlier."""
ANSWER_S = 20.0
AS_FAST_AS_IT_CAN = {"mbit_s": 1e6, "queue_s": 60.0}
"""tbf has the rate and the queue, not the process."""
_started: list[subprocess.Popen[bytes]] = []
"""Links that this process has started and not yet seen the end of; they outlive it."""


class Laid(msgspec.Struct, kw_only=True):
    """A link as it lies: by whom, between which regions and namespaces, and what it is like now."""

    name: str
    number: int
    between: tuple[str, str]
    namespaces: tuple[str, str]
    engine: str
    traits: Traits
    cut: bool = False
    pid: int = 0

    @property
    def device(self) -> str:
        """Of this name in both namespaces."""
        return f"wan{self.number}"

    @property
    def addresses(self) -> tuple[str, str]:
        """Of its two ends."""
        return f"10.79.{self.number}.1", f"10.79.{self.number}.2"


def has_netem(probe: str) -> bool:
    """Whether the kernel has it, by trying; `probe`: a free name of a namespace, which is gone afterwards. Raises
    LabError where it cannot be tried."""
    ip("netns", "add", probe)
    try:
        ip("-n", probe, "link", "add", "name", "probe0", "type", "veth", "peer", "name", "probe1")
        return _takes_netem(probe, "probe0")
    finally:
        ip("netns", "del", probe)


def _takes_netem(where: str, device: str) -> bool:
    try:
        tc("-n", where, "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms")
    except LabError:
        return False
    return True


def lay(link: Laid, run_dir: Path) -> None:
    """Make its two devices, with addresses, up, and as its traits say."""
    if link.engine == "netem":
        near, far = link.namespaces
        ip("-n", near, "link", "add", "name", link.device, "type", "veth", "peer", "name", link.device, "netns", far)
    else:
        _start(link, run_dir)
    for where, own, other in zip(link.namespaces, link.addresses, reversed(link.addresses), strict=True):
        if link.engine == "netem":  # else 45 packets are one to it, and lost together
            ip("-n", where, "link", "set", link.device, "gso_max_segs", "1")
        ip("-n", where, "addr", "add", own, "peer", other, "dev", link.device)
        ip("-n", where, "link", "set", link.device, "mtu", str(MTU), "up")
    shape(link, run_dir)


def shape(link: Laid, run_dir: Path) -> None:
    """Make both directions as its traits say, or let nothing through where it is cut. Raises LabError."""
    for where in link.namespaces:
        for words in qdiscs(link):
            tc("-n", where, "qdisc", "replace", "dev", link.device, *words)
    if link.engine == "tun":
        traits = link.traits
        way = {
            **AS_FAST_AS_IT_CAN, "delay_s": traits.delay_ms / 1e3, "jitter_s": traits.jitter_ms / 1e3,
            "loss": traits.loss_percent / 100, "open": not link.cut,
        }  # fmt: skip
        asked(link, run_dir, {"up": way, "down": way})


def qdiscs(link: Laid) -> list[list[str]]:
    """What `tc qdisc replace dev DEVICE` is told at each end, in this order."""
    traits = link.traits
    bytes_s = traits.rate_mbit_s * 1e6 / 8
    burst = max(BURST_BYTES, int(bytes_s * BURST_S))
    tbf = ["tbf", "rate", f"{round(traits.rate_mbit_s * 1e6)}bit", "burst", str(burst)]
    tbf += ["latency", f"{round(traits.queue_ms * 1e3)}us"]
    if link.engine == "tun":
        return [["root", "handle", "1:", *tbf]]
    under_way_s = (traits.delay_ms + traits.jitter_ms + traits.queue_ms) / 1e3
    packets = 1000 + round(bytes_s * under_way_s / SMALL_PACKET)
    netem = ["netem", "limit", str(packets), "delay", f"{round(traits.delay_ms * 1e3)}us"]
    netem += [f"{round(traits.jitter_ms * 1e3)}us"] if traits.jitter_ms else []
    netem += ["loss", f"{100.0 if link.cut else traits.loss_percent:g}%"]
    return [["root", "handle", "1:", *netem], ["parent", "1:1", "handle", "10:", *tbf]]


def asked(link: Laid, run_dir: Path, words: dict[str, Any]) -> dict[str, Any]:
    """What the process of a link answers to these changes. Raises LabError."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.settimeout(ANSWER_S)
            control.connect(str(socket_of(link, run_dir)))
            control.sendall(json.dumps(words).encode() + b"\n")
            answer: dict[str, Any] = json.loads(control.makefile("rb").readline())
    except (OSError, ValueError) as error:
        raise LabError(
            f"the link {link.name} does not answer ({error}): its process has ended; take the lab down, and up again"
        ) from error
    return answer


def reap() -> None:
    """Forget the links of this process that have ended, so that none stays a zombie."""
    _started[:] = [each for each in _started if each.poll() is None]


def socket_of(link: Laid, run_dir: Path) -> Path:
    """Where its process listens."""
    return run_dir / f"{link.name}.sock"


def _start(link: Laid, run_dir: Path) -> None:
    """Start the process of a link; its devices are there afterwards."""
    if not Path(TUN).exists():
        raise LabError(f"links without netem want {TUN}: modprobe tun, or give the container that device")
    words = [sys.executable, "-m", "zdiloco.wanlab.link", *link.namespaces, link.device, str(link.number)]
    place = socket_of(link, run_dir)
    log = run_dir / f"{link.name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*words, str(place)], cwd=run_dir, start_new_session=True, env={**os.environ, "PYTHONPATH": _root()},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    link.pid = process.pid
    _started.append(process)
    assert process.stdout
    with process.stdout:
        if not process.stdout.readline():
            process.wait(ANSWER_S)
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise LabError(f"the link {link.name} did not start: {''.join(last) or process.returncode}")


def _root() -> str:
    """The folder that holds the package: the process of a link may be started from anywhere."""
    return str(Path(__file__).resolve().parent.parent.parent)
