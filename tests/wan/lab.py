"""Regions joined by links of any shape, and the processes of one run in them.

    near region 0: the syncer, and learners beside it      link 1      region 1: learners, perhaps behind a relay
                                                       --------------
                                                           link 2      region 2: ...

Rule: a region is a network namespace, a link the process of `zdiloco/wanlab/link.py`, everybody a real `zdiloco`
process that opens its sockets in its region. Nothing is left when the test ends, nor after a crash: devices go with the
link's process, that one with the test's, and namespaces without their test are removed by the next one.
"""

import json
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tests.accept.stage import LIMIT_S, ROOT, Child, Stage
from tests.net.namespaces import Regions, ip, why_not
from zdiloco.chaos.forked import Nursery
from zdiloco.config import to_toml
from zdiloco.errors import LinkError
from zdiloco.node.query import Query
from zdiloco.wanlab.link import TUN

PORT, RELAY_PORT = 5700, 5710
Result = TypeVar("Result")
Carried = dict[str, dict[str, float]]
"""By direction (`up`: away from the region), what a link has carried so far: the fields of `Carried` in
`zdiloco/wanlab/way.py`, and `waiting_bytes`, `queue_s`: what is on it now, and how long one more packet would wait."""


def why_no_lab() -> str:
    """Why there can be none here, and what to do; empty: there can."""
    if not Path(TUN).exists():
        return f"links between namespaces want {TUN}: modprobe tun, or give the container that device"
    return why_not()


class Link:
    """The link of one region; its ends have addresses, and it is as fast as the machine until it is `shaped`."""

    def __init__(self, regions: "Shaped", region: int) -> None:
        self.device = f"lab{region}"
        words = ["-m", "zdiloco.wanlab.link", regions.names[0], regions.names[region], self.device, str(region)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdin=pipe, stdout=pipe)
        try:
            self._heard()
        except BaseException:
            self.close()
            raise

    def shaped(self, up: Mapping[str, Any] | None = None, down: Mapping[str, Any] | None = None) -> Carried:
        """Change a direction or both (`way.Shape`), now; returns what was carried until then."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"up": up or {}, "down": down or {}}).encode() + b"\n")
        self._process.stdin.flush()
        return self._heard()

    def both(self, **shape: Any) -> Carried:
        """The same change for both directions."""
        return self.shaped(shape, shape)

    @property
    def carried(self) -> Carried:
        """What it has carried so far."""
        return self.shaped()

    def _heard(self) -> Carried:
        assert self._process.stdout
        assert select.select([self._process.stdout], [], [], LIMIT_S)[0], f"the link {self.device} says nothing"
        line = self._process.stdout.readline()
        assert line, f"the link {self.device} has ended with {self._process.wait(LIMIT_S)}"
        answer: Carried = json.loads(line)
        return answer

    def close(self) -> None:
        """End it, and its devices with it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        try:
            self._process.wait(LIMIT_S)
        finally:
            self._process.kill()


class Shaped(Regions):
    """Regions whose links have a shape: `links[0]` is that of region 1."""

    def __init__(self, count: int) -> None:
        self.links: list[Link] = []
        super().__init__(count)

    def _join(self, region: int) -> None:
        self.links.append(Link(self, region))
        self._address(region, self.links[-1].device, self.links[-1].device)

    def near(self, region: int) -> str:
        """The address of region 0, as this region dials it."""
        return f"10.77.{region}.1"

    def congestion(self, name: str) -> None:
        """Have TCP between regions use this congestion control, which only routes can choose freely."""
        for region, link in enumerate(self.links, 1):
            for where in (self.names[0], self.names[region]):
                ip("-n", where, "route", "replace", f"10.77.{region}.0/24", "dev", link.device, "congctl", name)

    def asked(self, region: int, question: Callable[[], Result]) -> Result:
        """What a function returns that runs in a region."""
        answers: list[Result] = []
        thread = threading.Thread(target=self.inside(region, lambda: answers.append(question())), name="asks")
        thread.start()
        thread.join(LIMIT_S)
        assert answers, f"no answer from region {region}"
        return answers[0]

    def close(self) -> None:
        for link in self.links:
            link.close()
        super().close()


class Lab(Stage):
    """A run whose syncer is in region 0; everybody else is where they are told to be."""

    def __init__(self, folder: Path, forks: Nursery, regions: Shaped) -> None:
        self.regions, self._region = regions, 0
        super().__init__(folder, PORT, forks)

    @property
    def links(self) -> list[Link]:
        """The link of region 1, and so on."""
        return self.regions.links

    def write(self, **sections: dict[str, Any]) -> None:
        """Write run.toml anew, and one for each region: BASE with these changes."""
        net = {"listen": "0.0.0.0", "insecure": True, **sections.get("net", {})}
        super().write(**{**sections, "net": net})
        for region in range(len(self.regions.names)):
            for behind in (False, True) if region else (False,):
                host = self.regions.near(region) if region and not behind else "127.0.0.1"
                dials = replace(self.config.net, connect=host, port=RELAY_PORT if behind else PORT)
                config = replace(self.config, net=dials, relay=replace(self.config.relay, port=RELAY_PORT))
                self.toml_of(region, behind).write_text(to_toml(config), encoding="utf-8")

    def toml_of(self, region: int, behind: bool = False) -> Path:
        """The settings of whoever is in a region, perhaps behind its relay."""
        return self.folder / f"run-{region}{'-behind' if behind else ''}.toml"

    def relay(self, region: int) -> Child:
        """Start `zdiloco relay` in a region."""
        return self._there(region, lambda: self.command("relay", str(self.toml_of(region)), label=f"relay-{region}"))

    def learner_in(self, region: int, name: str, *options: str, behind: bool = False) -> Child:
        """Start `zdiloco learner` in a region, perhaps behind its relay."""
        words = ["learner", str(self.toml_of(region, behind)), "--name", name, *options]
        return self._there(region, lambda: self.command(*words, label=f"learner-{name}"))

    def ballast(self, region: int, name: str, parameters: int, pace_s: float) -> Child:
        """Start a user's script in a region, whose model has so many parameters, and whose steps cost little."""
        words = [str(self.toml_of(region)), name, str(parameters), str(pace_s)]
        script = Path(__file__).parent / "ballast.py"
        return self._there(region, lambda: self.run(f"ballast-{name}", script, *words))

    def _there(self, region: int, start: Callable[[], Child]) -> Child:
        self._region = region
        try:
            return start()
        finally:
            self._region = 0

    def _fork(self, label: str, words: Sequence[str], namespace: str = "") -> Child:
        return super()._fork(label, words, namespace or self.regions.names[self._region])

    def status(self) -> dict[str, Any]:
        """What the syncer answers to somebody beside it; empty: nobody does."""
        return self.regions.asked(0, super().status)

    def assert_accounted_for(self, *names: str) -> None:
        """`zdiloco ledger verify` finds every token of these, a process each, and none lost or dropped."""
        verify = self.command("ledger", "verify", str(self.run_dir), "--json")
        assert verify.wait() == 0, verify.errors + verify.output
        books = json.loads(verify.output)
        assert books["balanced"]
        assert books["ledger"]["trained"] > 0
        assert books["ledger"]["lost"] == books["ledger"]["dropped"] == 0
        assert all(len(self.counters(name)) == 1 for name in names)

    def relayed(self, region: int) -> set[str]:
        """Whom the relay of a region says to be behind it; empty: it does not answer."""

        def ask() -> set[str]:
            with Query(replace(self.config.net, port=RELAY_PORT)) as query:
                try:
                    return {each["name"] for each in query.ask(1.0, relay=True)["learners"]}
                except LinkError:
                    return set()

        return self.regions.asked(region, ask)
