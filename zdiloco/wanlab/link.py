"""A link between two network namespaces: `python -m zdiloco.wanlab.link NEAR FAR DEVICE SEED [SOCKET]`.

Rule: it is a device of that name in each namespace and this process between them, so what crosses it is the real TCP of
the system, and when the process ends, however it does, both devices are gone. One line of JSON changes the shape of a
direction (`way.py`); each is answered by what both have carried so far, and what waits now. Lines come on its input,
as long as that is open and whoever started it lives; or, with SOCKET, from whoever connects to it there, until it is
ended.
"""

import ctypes
import dataclasses
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any

from zdiloco.wanlab.namespaces import enter
from zdiloco.wanlab.way import Way

PR_SET_PDEATHSIG = 1
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
TUN = "/dev/net/tun"
BEFORE_OTHERS = 10
"""Its real-time priority: hardware does not wait for the processes that use it."""
PACKET, AT_ONCE, IDLE_S = 65_536, 64, 1.0
SPEAKS_WITHIN_S = 2.0
"""Whoever connects says its line at once: packets wait for it."""


def device(namespace: str, name: str) -> int:
    """Make a device in a namespace, which lives as long as this descriptor. The caller is in the namespace then."""
    enter(namespace)
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


class Between:
    """The process between two devices: `up` leads from the far one to the near one."""

    def __init__(self, near: int, far: int, seed: int, listener: socket.socket | None = None) -> None:
        self._listener = listener
        self._control = listener.fileno() if listener else 0
        self.ways = {"up": Way(2 * seed), "down": Way(2 * seed + 1)}
        self._into = {far: self.ways["up"], near: self.ways["down"]}
        self._out_of = {near: self.ways["up"], far: self.ways["down"]}
        self._unread = b""

    def carry(self) -> None:
        """Carry packets and obey, until the input ends."""
        os.write(1, self._answer())
        while True:
            wait_s = min(way.due_at() for way in self.ways.values()) - time.monotonic()
            ready, _, _ = select.select([self._control, *self._into], [], [], min(IDLE_S, max(0.0, wait_s)))
            for descriptor in [each for each in ready if each in self._into]:
                self._read(descriptor)
            for descriptor, way in self._out_of.items():
                self._write(descriptor, way)
            if self._control in ready and not self._obey():
                return

    def _read(self, descriptor: int) -> None:
        way = self._into[descriptor]
        for _ in range(AT_ONCE):
            try:
                packet = os.read(descriptor, PACKET)
            except OSError:  # there is none, or the device is not up yet
                return
            way.take(packet, time.monotonic())

    def _write(self, descriptor: int, way: Way) -> None:
        for packet in way.out(time.monotonic()):
            try:
                os.write(descriptor, packet)
            except OSError:
                way.carried.lost += 1

    def _obey(self) -> bool:
        """Do what was said. False: there will be no more."""
        if self._listener:
            self._serve(self._listener)
            return True
        data = os.read(0, PACKET)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._change(line)
            os.write(1, self._answer())
        return bool(data)

    def _serve(self, listener: socket.socket) -> None:
        """Hear one line of one caller, and answer it; whoever says anything else is not answered."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            caller, _ = listener.accept()
            with caller:
                caller.settimeout(SPEAKS_WITHIN_S)
                self._change(caller.recv(PACKET))
                caller.sendall(self._answer())

    def _change(self, line: bytes) -> None:
        told: dict[str, dict[str, Any]] = json.loads(line)
        for name, changes in told.items():
            self.ways[name].shape = dataclasses.replace(self.ways[name].shape, **changes)

    def _answer(self) -> bytes:
        now = time.monotonic()
        carried = {
            name: {
                **dataclasses.asdict(way.carried), "waiting_bytes": way.waiting_bytes, "queue_s": way.queue_s(now)
            }
            for name, way in self.ways.items()
        }  # fmt: skip
        return json.dumps(carried).encode() + b"\n"


def main(near: str, far: str, name: str, seed: str, place: str = "") -> None:
    """Be the link; both devices are there when the first line is said."""
    mother = os.getppid()
    listener = None
    if place:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(place)
        listener.listen()
    else:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != mother:
            return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(PermissionError):  # then it is late where the machine is busy, which is counted
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(BEFORE_OTHERS))
    Between(device(near, name), device(far, name), int(seed), listener).carry()


if __name__ == "__main__":
    main(*sys.argv[1:])
