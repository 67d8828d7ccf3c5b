"""What the units leave of the kernel is enough for a run: libzmq and torch end the process where it is not."""

import os
import pathlib
import shutil
from collections.abc import Callable

import pytest

from tests.accept.stage import Child, Stage
from tests.systemd.confined import why_not

MISSING = why_not() or ("" if shutil.which("systemd-analyze") else "no systemd-analyze: apt install systemd")

pytestmark = [
    pytest.mark.proc,
    pytest.mark.net,
    pytest.mark.skipif(bool(MISSING) and not os.environ.get("CI"), reason=MISSING),
]


def confined(stage: Stage, unit: str, *words: str) -> Child:
    """Start a command under the filter of a unit."""
    return stage.start(words[0], ["-m", "tests.systemd.confined", unit, *words])


def test_a_run_needs_no_more_than_the_units_leave(stage: Stage, free_ports: Callable[[int], int]) -> None:
    """Syncer, relay (with torch) and, behind it, a learner: rounds are merged, and all end in order."""
    port, toml = free_ports(4), str(stage.toml)
    stage.write(relay={"port": port, "premerge": True})
    syncer = confined(stage, "zdiloco-sync.service", "sync", toml)
    relay = confined(stage, "zdiloco-relay.service", "relay", toml)
    learner = confined(stage, "zdiloco-learner@.service", "learner", toml, "--name", "a", "--set", f"net.port={port}")
    stage.until(lambda: syncer.code is not None or relay.code is not None or stage.rounds() >= 2, "two rounds")
    for child in (learner, relay, syncer):
        assert child.code is None, child.errors
        seccomp = pathlib.Path(f"/proc/{child.pid}/status").read_text().partition("\nSeccomp:\t")[2][0]
        assert seccomp == "2", child.label
        stage.end(child)
