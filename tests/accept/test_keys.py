"""A run with keys as docs/operating.md has it: each machine makes a pair; one is in the list, and taken out of it."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child, Stage

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S)]


class Sites:
    """A folder of keys for each machine, named like its process; the syncer's holds the list."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.entries = stage, dict[str, str]()
        for name in ("syncer", "eu-0", "asia-0", "office"):
            command = stage.command("keygen", str(self.place(name)), name, label=f"keygen-{name}")
            assert command.wait() == 0, command.errors
            self.entries[name] = command.output
        for name in ("eu-0", "asia-0", "office"):
            shutil.copy(self.place("syncer") / "syncer.key", self.place(name))
        self.entries["office"] += 'rights = ["watch"]\n'

    def place(self, name: str) -> Path:
        return self.stage.folder / name / "keys"

    def allow(self, *names: str) -> None:
        """Write the list."""
        (self.place("syncer") / "allowed.toml").write_text("".join(self.entries[name] for name in names))

    def learner(self, name: str) -> Child:
        return self.stage.learner(name, "--set", f"net.keys={self.place(name)}")

    def merged(self) -> dict[str, Any]:
        """Merged tokens by learner, as the office sees it; it may ask, and nothing else."""
        words = ("status", f"127.0.0.1:{self.stage.port}", "--keys", str(self.place("office")), "--json")
        command = self.stage.command(*words, label="status")
        if command.wait():
            return {}
        told = json.loads(command.output)
        assert told["node"]["insecure"] is False
        return {each["name"]: each["merged_tokens"] for each in told["learners"]}


def test_a_run_over_three_sites_with_keys(stage: Stage) -> None:
    """K-12."""
    sites = Sites(stage)
    stage.write(net={"keys": str(sites.place("syncer")), "listen": "0.0.0.0"})  # beyond loopback, and not insecure
    early = stage.sync()
    assert early.wait() == 2, "nobody may join, so nobody is served"
    assert "net.allowed says who may connect" in early.errors

    sites.allow("eu-0", "asia-0", "office")
    syncer = stage.sync()
    eu, asia = sites.learner("eu-0"), sites.learner("asia-0")
    both = "both are merged"
    stage.until(lambda: all(sites.merged().get(name) for name in ("eu-0", "asia-0")), both, syncer, eu, asia)

    plain = stage.command("status", f"127.0.0.1:{stage.port}", label="plain")
    assert plain.wait() == 2
    assert "wants keys, and net.keys is not set" in plain.errors

    sites.allow("eu-0", "office")
    syncer.send(signal.SIGHUP)
    assert asia.wait() == 2
    assert "does not let this key in" in asia.errors
    assert "gone=asia-0" in syncer.errors
    before = sites.merged()["eu-0"]
    stage.until(lambda: sites.merged()["eu-0"] > before, "the other one goes on", syncer, eu)

    again = sites.learner("asia-0")
    assert again.wait() == 2
    assert "turned away who=127.0.0.1 (its key is not in net.allowed)" in syncer.errors
    stage.end(eu, syncer)
    assert all("Traceback" not in each.errors for each in (syncer, eu, asia, again, plain, early))
