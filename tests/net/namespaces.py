"""Network namespaces, one a region, each but the first joined to it by one link: wants root and `ip`.

Rule: whatever happens, nothing is left behind; what a killed test has left, the next one removes. Only threads that
`enter` a namespace are in it, and what they open stays there. Links are as fast as the machine; `tests/wan` has others.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from zdiloco.wanlab import namespaces as wanlab
from zdiloco.wanlab.namespaces import enter, ip

PREFIX = "zdiloco"
_NAME = re.compile(rf"{PREFIX}-(\d+)-\d+")


def why_not() -> str:
    """Why there can be none here, and what to do; empty: there can."""
    return wanlab.why_not(f"{PREFIX}-{os.getpid()}-99")


def sweep() -> None:
    """Remove the namespaces of processes that are dead."""
    for line in ip("netns", "list").splitlines():
        found = _NAME.match(line)
        if found and not Path(f"/proc/{found[1]}").exists():
            ip("netns", "del", found[0])


class Regions:
    """So many regions. The first is 10.77.R.1 on its link to region R, which is 10.77.R.2 there."""

    def __init__(self, count: int) -> None:
        sweep()
        self.names = [f"{PREFIX}-{os.getpid()}-{region}" for region in range(count)]
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            for region in range(1, count):
                self._join(region)
        except BaseException:
            self.close()
            raise

    def _join(self, region: int) -> None:
        """Lay the link to a region."""
        devices = (f"to{region}", "wan")
        near, far = self.names[0], self.names[region]
        ip("-n", near, "link", "add", devices[0], "type", "veth", "peer", "name", devices[1], "netns", far)
        self._address(region, *devices)

    def _address(self, region: int, near: str, far: str) -> None:
        """Give both ends of a link their addresses, and bring it up."""
        for where, device, last in ((self.names[0], near, 1), (self.names[region], far, 2)):
            ip("-n", where, "addr", "add", f"10.77.{region}.{last}/24", "dev", device)
            ip("-n", where, "link", "set", device, "up")

    def enter(self, region: int) -> None:
        """Put the calling thread into a region, for the rest of its life."""
        enter(self.names[region])

    def inside(self, region: int, job: Callable[[], None]) -> Callable[[], None]:
        """The same job, done in a region; for a thread of its own."""

        def work() -> None:
            self.enter(region)
            job()

        return work

    def carried(self, region: int) -> tuple[int, int]:
        """Bytes that a region's link has carried towards it, and away from it, by the counters of the interface."""
        place = "/sys/class/net/wan/statistics"
        told = ip("netns", "exec", self.names[region], "cat", f"{place}/rx_bytes", f"{place}/tx_bytes").split()
        return int(told[0]), int(told[1])

    def close(self) -> None:
        """Remove everything; links go with their namespaces."""
        for name in self.names:
            if Path(f"/run/netns/{name}").exists():
                ip("netns", "del", name)
