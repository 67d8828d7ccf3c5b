"""A lab: regions as network namespaces, the links between them, and what is known about both, in a run folder.

Rule: what was made can always be found again without the state that is written: namespaces by their names, processes
of links by their command line, which is looked at again before one is ended. So `down` leaves nothing, whatever was
killed.
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from zdiloco.errors import ConfigError, LabError
from zdiloco.wanlab import engines
from zdiloco.wanlab.engines import ENGINES, Laid
from zdiloco.wanlab.namespaces import NETNS, enter, ip, namespaces, why_not
from zdiloco.wanlab.profile import Profile

RUN = Path("/run/zdiloco-wan-lab")
STATE, LOCK = "state.json", "lock"
PREFIX, PROBE = "wanlab", "wanlab.probe"
LEAVES_WITHIN_S, ENDS_WITHIN_S = 10.0, 10.0
"""What processes in a region get after SIGTERM, and then after SIGKILL."""


class Region(msgspec.Struct, kw_only=True):
    """A region as it is: where, and the address at which all others reach it."""

    name: str
    namespace: str
    address: str


class State(msgspec.Struct, kw_only=True):
    """What is up."""

    profile: str
    doc: str
    engine: str
    regions: list[Region]
    links: list[Laid]


class Lab:
    """The lab of one name on this machine."""

    def __init__(self, name: str) -> None:
        self.name, self.run_dir = name, RUN / name

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes a lab meanwhile. The lock ends with its holder."""
        RUN.mkdir(parents=True, exist_ok=True)
        with (RUN / f"{self.name}.{LOCK}").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LabError(f"another wan-lab command changes the lab {self.name} just now: wait for it") from error
            yield

    def up(self, profile: Profile, engine: str) -> State:
        """Take down what is there, and put up this profile. Nothing is left where that fails. Raises LabError."""
        reason = why_not(f"{PROBE}.{os.getpid()}")
        if reason:
            raise LabError(reason)
        self.down()
        if engine not in ENGINES:
            engine = "netem" if engines.has_netem(f"{PROBE}.{os.getpid()}") else "tun"
        self.run_dir.mkdir(parents=True)
        try:
            state = self._planned(profile, engine)
            self._make(profile, state)
        except BaseException:
            self.down()
            raise
        return state

    def _planned(self, profile: Profile, engine: str) -> State:
        regions = [
            Region(name=each, namespace=f"{PREFIX}.{self.name}.{each}", address=f"10.78.{number}.1")
            for number, each in enumerate(profile.regions, 1)
        ]
        places = {each.name: each.namespace for each in regions}
        links = [
            Laid(
                name=each.name, number=number, between=each.between, engine=engine, traits=each.traits,
                namespaces=(places[each.between[0]], places[each.between[1]]),
            )
            for number, each in enumerate(profile.links, 1)
        ]  # fmt: skip
        return State(profile=profile.name, doc=profile.doc, engine=engine, regions=regions, links=links)

    def _make(self, profile: Profile, state: State) -> None:
        for region in state.regions:
            ip("netns", "add", region.namespace)
            ip("-n", region.namespace, "link", "set", "lo", "up")
            ip("-n", region.namespace, "addr", "add", f"{region.address}/32", "dev", "lo")
        for link in state.links:
            engines.lay(link, self.run_dir)
        self._write(state)
        laid = {each.name: each for each in state.links}
        for region in state.regions:
            ways = profile.next_hops(region.name)
            for other in state.regions:
                if other is not region:
                    link = laid[ways[other.name].name]
                    words = ["via", link.addresses[link.between[0] == region.name], "dev", link.device]
                    ip("-n", region.namespace, "route", "add", other.address, *words, "src", region.address)
            if any(len(set(link.between) & {region.name, other}) < 2 for other, link in ways.items()):
                self._forward(state)

    def _forward(self, state: State) -> None:
        """Where two regions have no link of their own, those between them hand packets on."""
        for region in state.regions:
            ip("netns", "exec", region.namespace, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

    def state(self) -> State:
        """What is up. Raises LabError if nothing is."""
        try:
            return msgspec.json.decode((self.run_dir / STATE).read_bytes(), type=State)
        except (OSError, msgspec.DecodeError) as error:
            raise LabError(f"the lab {self.name} is not up: bin/wan-lab up PROFILE") from error

    def _write(self, state: State) -> None:
        aside = self.run_dir / f"{STATE}.new"
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        aside.rename(self.run_dir / STATE)

    def change(self, name: str, words: Mapping[str, str]) -> Laid:
        """Set traits of a link while it carries; returns it as it is then. Raises ConfigError, LabError."""
        state = self.state()
        link: Laid = _named(name, state.links, "link")
        link.traits = link.traits.changed(words, f"link {name}")
        engines.shape(link, self.run_dir)
        self._write(state)
        return link

    def cut(self, names: Iterable[str], cut: bool) -> list[Laid]:
        """Cut links, or let them carry again, by their names or those of regions; no name: all. Returns them."""
        state = self.state()
        found = []
        for name in names:
            links = [each for each in state.links if name in (each.name, *each.between)]
            found += links or [_named(name, [*state.links, *state.regions], "link or region")]
        chosen = [each for each in state.links if each in found or not found]
        for link in chosen:
            link.cut = cut
            engines.shape(link, self.run_dir)
        self._write(state)
        return chosen

    def enter(self, region: str) -> None:
        """Put this thread into a region. Raises ConfigError, LabError."""
        where = _named(region, self.state().regions, "region")
        try:
            enter(where.namespace)
        except OSError as error:
            raise LabError(
                f"cannot enter the region {region} ({error.strerror}): {self.name} was not put up whole"
            ) from error

    def down(self) -> bool:
        """End every process in it, and remove all of it; True: there was something. Also what a killed one left."""
        for each in namespaces():
            if each.startswith(f"{PROBE}.") and not Path(f"/proc/{each.rpartition('.')[2]}").exists():
                ip("netns", "del", each)
        mine = [each for each in namespaces() if each.startswith(f"{PREFIX}.{self.name}.")]
        links = self._link_processes()
        for where in mine:
            _end(_inside(where), lambda pid, where=where: _is_inside(pid, where), signal.SIGTERM)
            _end(_inside(where), lambda pid, where=where: _is_inside(pid, where), signal.SIGKILL)
        _end(links, self._is_link, signal.SIGKILL)
        engines.reap()
        for where in mine:
            ip("netns", "del", where)
        there = bool(mine or links or self.run_dir.exists())
        shutil.rmtree(self.run_dir, ignore_errors=True)
        return there

    def _link_processes(self) -> list[int]:
        return [
            int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and self._is_link(int(each.name))
        ]

    def _is_link(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return False
        return "zdiloco.wanlab.link" in words and any(word.startswith(f"{self.run_dir}/") for word in words)

    def shown(self) -> dict[str, Any]:
        """What is up, as `show --json` prints it."""
        state = self.state()
        return {
            "lab": self.name, "profile": state.profile, "doc": state.doc, "engine": state.engine,
            "regions": [msgspec.to_builtins(each) for each in state.regions],
            "links": [{**msgspec.to_builtins(each), "device": each.device} for each in state.links],
        }  # fmt: skip


def _named(name: str, there: Iterable[Any], what: str) -> Any:
    for each in there:
        if each.name == name:
            return each
    raise ConfigError(f"no {what} {name!r}; there are {', '.join(each.name for each in there)}")


def _inode(place: Path) -> int:
    try:
        return place.stat().st_ino
    except OSError:
        return 0


def _is_inside(pid: int, where: str) -> bool:
    inode = _inode(Path(f"/proc/{pid}/ns/net"))
    return inode != 0 and inode == _inode(NETNS / where)


def _inside(where: str) -> list[int]:
    """Processes in a namespace, but those of links, which enter two of them."""
    return [int(each) for each in ip("netns", "pids", where).split()]


def _end(pids: Iterable[int], still: Any, how: signal.Signals) -> None:
    """Send a signal to those that are still who they were, and wait until they have ended, or the limit."""
    handles = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            handles.append(handle)
            if still(pid):  # the handle is of this process whatever becomes of the number
                signal.pidfd_send_signal(handle, how)
    try:
        for handle in handles:
            select.select([handle], [], [], LEAVES_WITHIN_S if how == signal.SIGTERM else ENDS_WITHIN_S)
    finally:
        for handle in handles:
            os.close(handle)
