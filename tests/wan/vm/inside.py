"""What happens in the virtual machine: a run of real processes over real `tc netem`, one case after the other.

First `bin/wan-lab` alone (`lab_inside.py`). Then the syncer is in one network namespace, a learner in another, and a
second one beside the syncer while the first is cut off. Each case is a line of JSON in `/run/out/results`; the first
thing that is not as it must be ends the program.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import zdiloco.chaos.forked
from tests.accept.stage import Child
from tests.net.namespaces import Regions, ip
from tests.wan.lab import Lab, Shaped
from tests.wan.vm.lab_inside import lab
from tests.wan.vm.told import write
from zdiloco.chaos.forked import Nursery
from zdiloco.rundir.journal import read_journal

WORK = Path("/run/work")
DELAY_MS, QUEUE_S = 40, 0.2
AT_ONCE = 8
"""Packets that TCP hands to netem as one: 45 would be most of a queue; each for itself costs more than they carry."""
SLOW_AGAIN = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
QUEUED_BITS = 8 * 1514 * 2
"""What lies in a queue as one, at least, where anything waits."""
RATES = ((20.0, 2), (50.0, 3), (5.0, 1))
"""Mbit/s, and how many contributions are timed."""
AFTER_MBIT_S = 20.0
"""The rate that the last of them changes to."""
CUT_S = 12.0
LIMIT_S = 120.0
SECTIONS: dict[str, dict[str, Any]] = {
    "sync": {
        "sync_period": 1, "num_fragments": 1, "report_every_s": 0.2, "beat_every_s": 1.0, "suspect_after_s": 4.0,
        "gone_after_s": 8.0, "checkpoint_every_s": 5.0,
    },
    "learner": {"codec": "fp32", "silent_after_s": 6.0, "answer_timeout_s": 8.0, "save_every_s": 0.0},
    "net": {"stall_s": 4.0},
    "task": {"preset": "small", "context": 8, "batch_size": 1, "grad_clip": 0.0},
}  # fmt: skip
"""3.3 million parameters in fp32 with every step: one contribution is under way all the time, or most of it."""
SLOWDOWN = "6"
"""A step is mostly sleep, else a processor made of software has no time for the link."""


class Plain(Shaped):
    """Regions whose links are the kernel's own."""

    def _join(self, region: int) -> None:
        Regions._join(self, region)


class Link:
    """Real netem at both ends of the link between two regions; `up` leads to the syncer."""

    def __init__(self, regions: Regions) -> None:
        near, far = regions.names
        self._ends = {"up": (far, "wan"), "down": (near, "to1")}
        for where, device in self._ends.values():
            ip("-n", where, "link", "set", device, "gso_max_segs", str(AT_ONCE))
            ip("netns", "exec", where, "sh", "-c", f"echo 0 > {SLOW_AGAIN}")  # as docs/operating.md has it
        self._added = False

    def shape(self, mbit_s: float, *, loss: float = 0.0) -> None:
        """Both directions at once; `loss`: share of packets, 1.0 cuts it off."""
        rate = 1e6 * mbit_s
        limit = int(rate * (DELAY_MS / 1e3 + QUEUE_S) / QUEUED_BITS) + 10
        verb = "change" if self._added else "add"
        for where, device in self._ends.values():
            words = ["netem", "rate", f"{mbit_s:g}mbit", "delay", f"{DELAY_MS}ms", "limit", str(limit)]
            words += ["loss", f"{100 * loss:g}%"] if loss else []
            # `change` keeps the loss of before where none is named
            words += ["loss", "0%"] if not loss and self._added else []
            _run("tc", "-n", where, "qdisc", verb, "dev", device, "root", *words)
        self._added = True

    def counters(self) -> dict[str, dict[str, int]]:
        """By direction, what `tc -s qdisc` counts: bytes, packets and drops so far."""
        found = {}
        for way, (where, device) in self._ends.items():
            (told,) = json.loads(_run("tc", "-n", where, "-s", "-j", "qdisc", "show", "dev", device))
            assert told["kind"] == "netem", told
            found[way] = {name: int(told[name]) for name in ("bytes", "packets", "drops")}
        return found


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


class Body(NamedTuple):
    """A contribution on its way, in monotonic seconds: `began`, when the first byte could be here."""

    nbytes: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Cases:
    """The run, and what is seen of it."""

    def __init__(self, lab: Lab, link: Link) -> None:
        self.lab, self.link = lab, link
        self.syncer = lab.sync()
        self.far = lab.learner_in(1, "far", "--slowdown", SLOWDOWN)

    def tell(self, case: str, **what: Any) -> None:
        """A line of the results; the ledger balances now."""
        command = self.lab.command("ledger", "verify", str(self.lab.run_dir), "--json", label=f"ledger-{case}")
        code = command.wait(LIMIT_S)
        assert code == 0, f"{case}: the ledger ends with {code}: {command.output[-3000:]}{command.errors[-2000:]}"
        write(case, ledger=code, **what)

    def bodies(self, since: float) -> list["Body"]:
        """The contributions of the far one that were offered after a moment and are here, by the syncer's journal."""
        found = []
        for line in read_journal(self.lab.run_dir):
            if line["kind"] == "arrived" and line["who"] == "far" and line.get("offer_s") is not None:
                offered = line["t"] - line["answer_s"] + line["offer_s"]
                found.append(Body(line["nbytes"], offered + 2 * DELAY_MS / 1e3, line["t"]))
        return [each for each in found if each.began > since]

    def carried(self, before: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """What the link has counted since then."""
        now = self.link.counters()
        return {way: {name: now[way][name] - before[way][name] for name in now[way]} for way in now}

    def merged(self, name: str) -> int:
        """Rounds with this learner."""
        return int(self.lab.member(name).get("rounds", 0))

    def until(self, condition: Any, what: str, *more: Child) -> None:
        """Wait, with an end; the syncer and the far one live."""
        self.lab.until(condition, what, self.syncer, self.far, *more, limit_s=LIMIT_S)

    # ---- cases

    def joins(self) -> None:
        """The run begins, and the far one is merged."""
        self.link.shape(50.0)
        self.until(lambda: self.merged("far") >= 2, "two rounds")
        self.tell("joins", kernel=_run("uname", "-r").strip())

    def rate(self, mbit_s: float, count: int) -> None:
        """The rate is another one: how fast are contributions that begin now?"""
        self.link.shape(mbit_s)
        before, began = self.link.counters(), time.monotonic()
        self.until(lambda: len(self.bodies(began)) >= count, f"{count} contributions at {mbit_s:g} Mbit/s")
        carried, came = self.carried(before), self.bodies(began)
        goodput = [8e-6 * each.nbytes / each.seconds for each in came]
        self.tell("rate", mbit_s=mbit_s, goodput_mbit_s=goodput, nbytes=came[0].nbytes, carried=carried)

    def change(self) -> None:
        """The rate changes while a contribution is half through."""
        (before_mbit_s, _), nbytes, before = RATES[-1], self.bodies(0.0)[-1].nbytes, self.link.counters()
        self.until(lambda: self.carried(before)["up"]["bytes"] > 0.4 * nbytes, "the next one is half through")
        self.link.shape(AFTER_MBIT_S)
        changed = time.monotonic()
        self.until(lambda: self.bodies(0.0)[-1].ended > changed, "it is here")
        body = next(each for each in self.bodies(0.0) if each.ended > changed)
        slow_s, fast_s = changed - body.began, body.ended - changed
        room = before_mbit_s * slow_s + AFTER_MBIT_S * fast_s
        self.tell("change", goodput=8e-6 * body.nbytes / room, slow_s=slow_s, fast_s=fast_s)

    def loss(self) -> None:
        """One packet in a hundred is lost both ways: what comes is merged."""
        self.link.shape(20.0, loss=0.01)
        before, began = self.link.counters(), time.monotonic()
        self.until(lambda: self.bodies(began), "a contribution in spite of it")
        self.tell("loss", carried=self.carried(before))

    def partition(self) -> None:
        """The region is cut off: it trains on, the others have their rounds; when it heals all is merged."""
        near = self.lab.learner_in(0, "near")
        self.until(lambda: self.merged("near") >= 1, "the near one is merged", near)
        before, steps, rounds = self.link.counters(), self.lab.steps("far"), self.lab.rounds()
        self.link.shape(5.0, loss=1.0)
        ends = time.monotonic() + CUT_S
        self.until(lambda: time.monotonic() > ends, "the cut", near)
        self.until(lambda: self.lab.member("far")["state"] == "gone", "the far one is missed", near)
        trained = sum(each.trained_tokens for each in self.lab.counters("far"))
        told = {
            "far_steps": self.lab.steps("far") - steps, "rounds": self.lab.rounds() - rounds,
            "carried": self.carried(before),
        }  # fmt: skip
        self.link.shape(50.0)
        healed = time.monotonic()
        done = "what was done meanwhile is merged"
        self.until(lambda: self.lab.member("far").get("merged_tokens", 0.0) >= trained, done, near)
        self.tell("partition", merged_s=time.monotonic() - healed, **told)
        self.lab.end(near)

    def ends(self) -> None:
        """Everybody leaves in order, and the books are right."""
        self.lab.end(self.far, self.syncer)
        self.tell("end")


def main() -> int:
    """Play all cases; returns the exit code."""
    zdiloco.chaos.forked.ANSWER_S = LIMIT_S  # to load everything takes a software machine half a minute
    WORK.mkdir()
    write("lab", **lab())
    forks = Nursery(WORK, module="tests.accept.forks")
    regions = Plain(2)
    folder = WORK / "lab"
    folder.mkdir()
    stage = Lab(folder, forks, regions)
    try:
        stage.write(**SECTIONS)
        cases = Cases(stage, Link(regions))
        cases.joins()
        for mbit_s, count in RATES:
            cases.rate(mbit_s, count)
        cases.change()
        cases.loss()
        cases.partition()
        cases.ends()
    finally:
        stage.close()
        forks.close()
        regions.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
