"""What is checked, why, and what mends it; and what was found.

Rule: every check stands in CHECKS once, with its reason and its fix; `found` is the only way to a finding. A fix is a
command or a key to be copied, its names in braces filled in. Nothing is called good that was not measured.
"""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a finding comes to. FAIL: a run will not work, or not keep its pace; UNKNOWN: it could not be measured."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Side(StrEnum):
    """Which machine: the one on which the doctor runs, or the one that it dials."""

    HERE = "here"
    THERE = "there"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """`asks`: what is looked at; `why` it matters; `fix`: what to type, or to set."""

    asks: str
    why: str
    fix: str


CHECKS: dict[str, Check] = {
    "host": Check(
        asks="the name in net.connect leads to an address",
        why="nobody can be dialled",
        fix="--set net.connect={address}",
    ),
    "partner": Check(
        asks="somebody listens at net.connect and net.port",
        why="without it neither ports nor link, clock and versions of the far side can be checked",
        fix="zdiloco doctor {file} --listen (on {host})",
    ),
    "port": Check(
        asks="each of the four ports takes a connection, and bytes come both ways",
        why="all four roads are needed: words, bodies, and both broadcasts",
        fix="sudo ufw allow proto tcp to any port {first}:{last} (on {host}, and in every firewall on the way)",
    ),
    "own port": Check(
        asks="the four ports that this role binds are free",
        why="the process would end at once",
        fix="--set {key}={port}",
    ),
    "round trip": Check(
        asks="the window over the round trip carries what the run needs",
        why="at most net.window_bytes are under way from one peer in each round trip",
        fix="--set net.window_bytes={bytes}",
    ),
    "uplink": Check(
        asks="measured bytes a second, against what this role sends",
        why="contributions take longer than their period, so learners decline calls and rounds come apart",
        fix="--set sync.sync_period={steps}",
    ),
    "downlink": Check(
        asks="measured bytes a second, against what this role receives",
        why="published values come later than they are made, so learners leave the broadcast and pull",
        fix="--set sync.sync_period={steps}",
    ),
    "clock": Check(
        asks="the wall clocks of both sides agree",
        why="no decision reads them, but logs and journals of the two machines cannot be laid side by side",
        fix="sudo timedatectl set-ntp true (on the side that is wrong)",
    ),
    "mtu": Check(
        asks="the largest packet of the path",
        why="small packets spend a larger part of the link, and of the processor, on headers",
        fix="sudo ip link set dev {device} mtu {bytes}",
    ),
    "black hole": Check(
        asks="packets of full size arrive, both ways",
        why="connections open and words pass, but every body hangs: large packets vanish without a word",
        fix="sudo sysctl -w net.ipv4.tcp_mtu_probing=1 (on both sides)",
    ),
    "congestion": Check(
        asks="TCP's congestion control on the road, where the round trip is long",
        why="with {name} a long road that loses packets carries a small part of what it can",
        fix="sudo modprobe tcp_bbr; sudo sysctl -w net.ipv4.tcp_congestion_control=bbr",
    ),
    "idle": Check(
        asks="tcp_slow_start_after_idle, where the round trip is long",
        why="bodies come in bursts, and after each pause a connection begins with ten packets again",
        fix="sudo sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
    ),
    "send buffer": Check(
        asks="the largest tcp_wmem, against the bandwidth-delay product",
        why="a connection has at most half of it under way in each round trip",
        fix='sudo sysctl -w net.ipv4.tcp_wmem="4096 16384 {bytes}"',
    ),
    "receive buffer": Check(
        asks="the largest tcp_rmem, against the bandwidth-delay product",
        why="a connection has at most half of it under way in each round trip",
        fix='sudo sysctl -w net.ipv4.tcp_rmem="4096 131072 {bytes}"',
    ),
    "descriptors": Check(
        asks="how many descriptors the process may have (RLIMIT_NOFILE), against what the role needs",
        why="connections beyond that are turned away",
        fix="ulimit -n {count}",
    ),
    "sockets": Check(
        asks="how many sockets libzmq allows (ZMQ_SOCKET_LIMIT), against what the role needs",
        why="learners beyond that are turned away",
        fix="--set relay.most_learners={count}",
    ),
    "threads": Check(
        asks="torch threads of one process, times the processes here, against the cores",
        why="threads that wait for each other's core take a hundred times longer for a small copy",
        fix="export OMP_NUM_THREADS={threads} OMP_WAIT_POLICY=PASSIVE",
    ),
    "memory": Check(
        asks="what is free, and the bounds of cgroup and process, against what the role needs",
        why="the kernel kills what grows beyond it",
        fix="give the process {gigabytes} GB, or train a smaller model",
    ),
    "disk place": Check(
        asks="run.dir can be written to",
        why="checkpoints and counters lie there",
        fix="--set run.dir={place}",
    ),
    "disk space": Check(
        asks="what is free in run.dir, against what the role keeps there",
        why="on a full disk checkpoints fail, and nothing more becomes stable",
        fix="free {gigabytes} GB, or --set run.dir={place}",
    ),
    "disk speed": Check(
        asks="bytes a second, written and synced in run.dir, against what the role writes",
        why="what is not durable in time must be kept in memory, until nothing more is contributed",
        fix="--set {key}={seconds}",
    ),
    "codec": Check(
        asks="values a second that are encoded and decoded here, against what the role has to",
        why="bodies are ready later than they are due",
        fix="--set {key}={value}",
    ),
    "protocol": Check(
        asks="both sides speak the same version of the protocol",
        why="a peer of another version is refused",
        fix="pip install zdiloco=={version} (on the other side)",
    ),
    "version": Check(
        asks="both sides have the same zdiloco",
        why="only equal versions are tested together",
        fix="pip install zdiloco=={version} (on the other side)",
    ),
    "libzmq": Check(
        asks="libzmq is as new as what the sockets were measured with",
        why="older ones have known holes, and no process starts with them",
        fix="pip install -U pyzmq",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check on one side. `measured`: in words, with its unit; `value` and `unit`: the same for programs, where it
    is a number; `why` and `fix` are empty unless something is to be done."""

    check: str
    side: Side
    verdict: Verdict
    measured: str
    value: float | None = None
    unit: str = ""
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a judgement is about: in words, and as a number with its unit where it is one."""

    said: str
    value: float | None = None
    unit: str = ""


def found(check: str, side: Side, verdict: Verdict, measured: Measured, **names: object) -> Finding:
    """The finding of a check in CHECKS. `names`: what its reason and its fix leave open."""
    bad = verdict in (Verdict.WARN, Verdict.FAIL)
    told = CHECKS[check]
    return Finding(
        check=check,
        side=side,
        verdict=verdict,
        measured=measured.said,
        value=measured.value,
        unit=measured.unit,
        why=told.why.format(**names) if bad else "",
        fix=told.fix.format(**names) if bad else "",
    )


def unknown(check: str, side: Side, why: str) -> Finding:
    """A check that could not be made."""
    return found(check, side, Verdict.UNKNOWN, Measured(said=why))


def graded(value: float, warn_below: float, fail_below: float) -> Verdict:
    """The verdict on a figure of which more is better."""
    if value < fail_below:
        return Verdict.FAIL
    return Verdict.WARN if value < warn_below else Verdict.OK
