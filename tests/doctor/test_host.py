"""What a process may have: judged by figures, read from files, and from the limits of a real child."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doctor.parts import bad, need
from zdiloco.doctor.finding import Side, Verdict
from zdiloco.doctor.host import Host, Memory, judge_host, read_host
from zdiloco.doctor.needs import Role

HERE, WARN, FAIL = Side.HERE, Verdict.WARN, Verdict.FAIL
GOOD = Host(
    descriptors=1024, most_descriptors=4096, sockets=65535, cores=8.0, threads=4,
    memory=Memory(nbytes=1e12, by="free memory"),
)  # fmt: skip
NEED = need(memory_bytes=1e9, descriptors=100)


@pytest.mark.parametrize(
    ("changes", "processes", "wanted"),
    [
        ({}, 1, {}),
        ({}, 2, {}),
        ({}, 3, {"threads": WARN}),
        ({"threads": 9}, 1, {"threads": WARN}),
        ({"threads": 1, "cores": 0.5}, 1, {}),
        ({"descriptors": 99}, 1, {"descriptors": FAIL}),
        ({"descriptors": math.inf}, 1, {}),
        ({"sockets": 4}, 1, {"sockets": FAIL}),
        ({"memory": Memory(nbytes=1.1e9, by="x")}, 1, {"memory": WARN}),
        ({"memory": Memory(nbytes=0.9e9, by="x")}, 1, {"memory": FAIL}),
        ({"memory": None}, 1, {}),
    ],
)
def test_a_host_is_judged_by_what_the_role_needs(
    changes: dict[str, object], processes: int, wanted: dict[str, Verdict]
) -> None:
    found = judge_host(replace(GOOD, **changes), NEED, processes)
    assert bad(found) == {(check, HERE): verdict for check, verdict in wanted.items()}
    assert len(found) == 4


def test_a_relay_raises_its_own_limit_as_far_as_it_may() -> None:
    relay = need(Role.RELAY)
    assert 256 < relay.descriptors < 4096
    assert bad(judge_host(replace(GOOD, descriptors=256), relay)) == {}
    assert bad(judge_host(replace(GOOD, descriptors=256, most_descriptors=256), relay)) == {("descriptors", HERE): FAIL}


def test_the_fixes_are_to_be_typed() -> None:
    poor = replace(GOOD, descriptors=10, threads=8, sockets=4, memory=Memory(nbytes=1.0, by="x"))
    fixes = [finding.fix for finding in judge_host(poor, NEED, 4)]
    assert fixes == [
        "ulimit -n 128", "--set relay.most_learners=1", "export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE",
        "give the process 1.2 GB, or train a smaller model",
    ]  # fmt: skip


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1000000 kB\n", **files}.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def test_the_tightest_bound_of_memory_and_cores_counts(tmp_path: Path) -> None:
    """Of what is free, of the group, and of those around it: as newer and as older kernels tell it."""
    free = read_host(root=tree(tmp_path, {})).memory
    assert free == Memory(nbytes=1.024e9, by="free memory")
    newer = tree(tmp_path / "two", {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "5000\n",
        "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n",
    })  # fmt: skip
    found = read_host(root=newer)
    assert found.memory == Memory(nbytes=5000.0, by="cgroup a/memory.max")
    assert found.cores <= 1.5
    older = tree(tmp_path / "one", {
        "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/x\n0::/\n",
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "7000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    found = read_host(root=older)
    assert (found.memory, found.cores) == (Memory(nbytes=7000.0, by="cgroup memory/x/memory.limit_in_bytes"), 0.5)


@pytest.mark.proc
def test_the_limits_of_a_real_process_are_read() -> None:
    script = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (77, 99)); r.setrlimit(r.RLIMIT_AS, (2**31, 2**31));"
        "from zdiloco.doctor.host import read_host; h = read_host();"
        "print(h.descriptors, h.most_descriptors, h.memory.nbytes, h.memory.by)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split(maxsplit=3) == ["77", "99", f"{2.0**31}", "ulimit -v\n"]
