"""What this process may have here: descriptors, sockets, cores, memory; read from the system, and judged.

Rule: the bound of memory is the least of what is free, of the cgroups that hold the process, and of its own limits. The
root of /proc and /sys is an argument.
"""

import math
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq

from zdiloco.doctor.finding import Finding, Measured, Side, Verdict, found, graded, unknown
from zdiloco.doctor.needs import Need

GB = 1e9
ROOMY = 1.2
NO_LIMIT = 2**60
"""What cgroups call no limit is a number about as large as this, or larger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes that a process may have, and what says so."""

    nbytes: float
    by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """`descriptors`: those allowed, and those that the process could allow itself; `threads` of torch in one process,
    0: not asked; `memory`: the tightest bound, None: not told."""

    descriptors: float
    most_descriptors: float
    sockets: int
    cores: float
    threads: int
    memory: Memory | None


def read_host(*, threads: int = 0, root: Path = Path("/")) -> Host:
    """What holds for this process."""
    soft, hard = (math.inf if each == resource.RLIM_INFINITY else each for each in _limit(resource.RLIMIT_NOFILE))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        sockets = int(context.get(zmq.SOCKET_LIMIT))
    finally:
        context.term()
    bounds = [*_free(root), *_groups(root), *_own()]
    return Host(
        descriptors=soft,
        most_descriptors=hard,
        sockets=sockets,
        cores=min([float(_cores()), *_quotas(root)]),
        threads=threads,
        memory=min(bounds, key=lambda bound: bound.nbytes, default=None),
    )


def _limit(which: int) -> tuple[int, int]:
    return resource.getrlimit(which)


def _cores() -> int:
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _free(root: Path) -> Iterator[Memory]:
    for line in _text(root / "proc" / "meminfo").splitlines():
        words = line.split()
        if words[:1] == ["MemAvailable:"] and words[1:2] and words[1].isdigit():
            yield Memory(nbytes=1024.0 * int(words[1]), by="free memory")


def _own() -> Iterator[Memory]:
    for which, by in ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d")):
        soft = _limit(which)[0]
        if soft != resource.RLIM_INFINITY and soft < NO_LIMIT:
            yield Memory(nbytes=float(soft), by=by)


def _groups(root: Path) -> Iterator[Memory]:
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(folder / name).strip()
            if text.isdigit() and int(text) < NO_LIMIT:
                yield Memory(nbytes=float(text), by=f"cgroup {folder.relative_to(root / 'sys/fs/cgroup')}/{name}")


def _quotas(root: Path) -> Iterator[float]:
    """Cores that the cgroups allow."""
    for folder in _folders(root, "cpu"):
        words = _text(folder / "cpu.max").split()
        if not words:
            words = [_text(folder / f"cpu.cfs_{each}_us").strip() for each in ("quota", "period")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            yield int(words[0]) / int(words[1])


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of all cgroups that this process is in for a controller: the innermost, and those around it."""
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            base = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        inner = base / path.strip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder == base or base in folder.parents)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def judge_host(host: Host, need: Need, processes: int = 1) -> list[Finding]:
    """Whether the role has room here. `processes`: how many like it this machine runs, which `need` counts already."""
    return [_descriptors(host, need), _sockets(host, need), _threads(host, processes), _memory(host, need)]


def _descriptors(host: Host, need: Need) -> Finding:
    raised = need.role == "relay"  # a relay raises its own limit as far as it may
    allowed = host.most_descriptors if raised else host.descriptors
    measured = Measured(said=f"{allowed:g} allowed, {need.descriptors} needed", value=_number(allowed))
    return found("descriptors", Side.HERE, graded(allowed, need.descriptors, need.descriptors), measured,
                 count=2 ** math.ceil(math.log2(need.descriptors)))  # fmt: skip


def _sockets(host: Host, need: Need) -> Finding:
    bad = host.sockets < need.sockets
    measured = Measured(said=f"{host.sockets} allowed, {need.sockets} needed", value=float(host.sockets))
    fits = max(1, host.sockets // (1 + need.stripes) - 64)
    return found("sockets", Side.HERE, Verdict.FAIL if bad else Verdict.OK, measured, count=fits)


def _threads(host: Host, processes: int) -> Finding:
    if not host.threads:
        return unknown("threads", Side.HERE, "this role has no torch threads")
    bad = host.threads * processes > max(1.0, host.cores)
    said = f"{host.threads} torch threads × {processes} processes on {host.cores:g} cores"
    each = max(1, int(host.cores / processes))
    measured = Measured(said=said, value=float(host.threads * processes), unit="threads")
    return found("threads", Side.HERE, Verdict.WARN if bad else Verdict.OK, measured, threads=each)


def _memory(host: Host, need: Need) -> Finding:
    if host.memory is None:
        return unknown("memory", Side.HERE, "the system does not tell")
    needed, has = need.memory_bytes, host.memory
    said = f"{has.nbytes / GB:.3g} GB ({has.by}), {needed / GB:.3g} GB needed"
    measured = Measured(said=said, value=has.nbytes, unit="bytes")
    verdict = graded(has.nbytes, ROOMY * needed, needed)
    return found("memory", Side.HERE, verdict, measured, gigabytes=f"{ROOMY * needed / GB:.3g}")


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
