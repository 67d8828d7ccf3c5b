"""The knobs of the real world: the run, its sockets, its disk; and the settings that a node is handed as one.

Rule: every field has its unit and its meaning in metadata; defaults suit one machine and an ordinary link.
"""

import operator
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.errors import ConfigError
from zdiloco.knobs import check_choices, check_knobs, check_name, knob
from zdiloco.wire.flow import InboxParams, check_flow
from zdiloco.wire.stripes import MOST_STRIPES

if TYPE_CHECKING:
    from zdiloco.tensor.outer import OuterParams

HOST = re.compile(r"[\w.:%*-]{1,255}", re.ASCII)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def whole_tokens(tokens: object, most: int) -> int:
    """The tokens of one inner step as Python's own whole number. Raises ConfigError for what cannot be."""
    try:
        count = operator.index(tokens)  # type: ignore[arg-type]  # or TypeError
    except TypeError:
        count = -1
    if not 0 <= count <= most:
        raise ConfigError(f"step(tokens={tokens!r}): allowed is a whole number, 0 to {most} (sync.max_step_tokens)")
    return int(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunParams:
    """What this run is, where it lies, and when it is over."""

    name: str = knob("run", "name of the run, in logs and status")
    dir: str = knob("runs/run", "run folder: checkpoints, counters, logs")
    target_tokens: int = knob(0, "merged tokens, weighted by parameter share, that end the run; 0: no end", "tokens")
    init: str = knob("first", "'first': the first learner gives the initial values; or path of a safetensors file")

    def __post_init__(self) -> None:
        check_name(self.name, "run.name")
        check_knobs(self, "run", target_tokens=(0, 2**53))
        for key in ("dir", "init"):
            value = getattr(self, key)
            if not value:
                raise ConfigError(f"run.{key} is empty; it must name a place")
            if "\0" in value:
                raise ConfigError(f"run.{key} is {value!r}; a path has no NUL in it")

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.dir)


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeParams:
    """How contributions become one outer step, and how its result is published."""

    method: str = knob("rda", "'rda': norms and directions averaged apart, per tensor; 'avg': plain weighted average")
    robust: str = knob(
        "none",
        "against hostile learners, in rounds of 3 or more: 'clip': none counts for more than the middle one; 'trim': "
        "and what stands apart is left out",
    )
    outer_lr: float = knob(1.0, "learning rate of the outer step")
    outer_momentum: float = knob(0.0, "Nesterov momentum of the outer step; harmful with few outer steps")
    publish_codec: str = knob("bf16", "how published values are rounded: 'bf16' or 'fp32'")
    delta_codec: str = knob("none", "broadcast only what has changed, as 'int8' or '4bit'; 'none': values as they are")

    def __post_init__(self) -> None:
        check_choices(self, "merge", method=("rda", "avg"), publish_codec=("bf16", "fp32"))
        check_choices(self, "merge", delta_codec=("none", "int8", "4bit"), robust=("none", "clip", "trim"))
        check_knobs(self, "merge", outer_lr=(1e-6, 10), outer_momentum=(0, 0.999999))

    @property
    def outer(self) -> "OuterParams":
        """The outer optimizer's knobs."""
        from zdiloco.tensor.outer import OuterParams  # loads torch, which a status query can do without

        return OuterParams(lr=self.outer_lr, momentum=self.outer_momentum)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetParams:
    """Sockets and transfers. Four consecutive ports: control, bulk, control broadcast, bulk broadcast."""

    listen: str = knob("127.0.0.1", "address that the syncer binds")
    connect: str = knob("127.0.0.1", "host that learners and relays dial")
    port: int = knob(5700, "first of four consecutive ports", "port")
    insecure: bool = knob(False, "allow a listen address other than loopback, without keys: anybody may then join")
    keys: str = knob("", "folder of key files (zdiloco keygen); everything is encrypted then; empty: no keys")
    key: str = knob("", "whose secret key in net.keys is ours; empty: the learner's name, 'syncer' or 'relay'")
    server_key: str = knob("syncer", "whose public key in net.keys the syncer or relay that is dialled must have")
    allowed: str = knob("allowed.toml", "file in net.keys of a syncer or relay: who may connect, and what each may do")
    chunk_bytes: int = knob(2**20, "payload of one chunk; on a slow link it is smaller", "bytes")
    window_bytes: int = knob(2**23, "most bytes under way from one peer; a slower link gets less", "bytes")
    stripes: int = knob(1, "bulk connections of a learner, 1 to 4: more for a long link that loses packets")
    receive_bytes: int = knob(2**32, "memory of a learner for updates under way", "bytes")
    stall_s: float = knob(2.0, "a transfer without a chunk for so long is asked for again", "s")
    give_up_s: float = knob(30.0, "a transfer without progress for so long is given up", "s")
    leave_s: float = knob(3.5, "a leaving process pushes what fits for at most so long", "s")
    handshake_s: float = knob(10.0, "a connection that has not shaken hands after so long is cut off", "s")
    most_connections: int = knob(4096, "connections to a syncer or relay; a learner has four; more are hung up")
    peer_messages_per_s: float = knob(1000.0, "control messages of one peer beside credits; more are dropped", "1/s")
    messages_per_s: float = knob(20000.0, "the same, of all peers together", "1/s")
    peer_unasked_bytes_per_s: float = knob(2.0**22, "chunks of one peer that nobody asked for; more are dropped", "B/s")
    unasked_bytes_per_s: float = knob(2.0**26, "the same, of all peers together", "B/s")
    most_offences: int = knob(100, "frames of a peer in a minute that are no message, or not its to say: it is banned")
    ban_s: float = knob(60.0, "nothing of a banned peer is read for so long, each next time for twice as long", "s")
    most_ban_s: float = knob(3600.0, "the longest ban; who behaves for so long is as good as new", "s")

    def __post_init__(self) -> None:
        check_knobs(self, "net", port=(1024, 65532), chunk_bytes=(1024, 2**23))
        check_knobs(self, "net", receive_bytes=(2**16, 2**50), stall_s=(0.01, 3600), give_up_s=(0.01, 1e6))
        check_knobs(self, "net", leave_s=(0, 3600), stripes=(1, MOST_STRIPES))
        check_knobs(self, "net", handshake_s=(0.1, 3600), most_connections=(4, 2**20), most_offences=(1, 2**53))
        check_knobs(self, "net", peer_messages_per_s=(1, 1e9), messages_per_s=(1, 1e9), ban_s=(0.01, 1e6))
        check_knobs(self, "net", peer_unasked_bytes_per_s=(1, 1e12), unasked_bytes_per_s=(1, 1e12))
        check_knobs(self, "net", most_ban_s=(self.ban_s, 1e7))
        check_flow(self.window_bytes, self.stall_s, self.give_up_s)
        if self.window_bytes < self.chunk_bytes:
            raise ConfigError(f"net.window_bytes is {self.window_bytes}; it must hold a chunk of {self.chunk_bytes}")
        for key in ("listen", "connect"):
            if not HOST.fullmatch(getattr(self, key)):
                raise ConfigError(f"net.{key} is {getattr(self, key)!r}; allowed is the name or address of a host")
        for name in (self.key or "any", self.server_key):
            check_name(name, "net.key or net.server_key")
        if "\0" in self.keys + self.allowed or not self.allowed:
            raise ConfigError("net.keys and net.allowed are places of files; net.allowed must name one")
        self.check_listen("net.listen", self.listen)

    def check_listen(self, key: str, address: str) -> None:
        """Raise ConfigError for an address beyond loopback that would be bound without keys, unless `insecure` says
        so; for insecure together with keys, too."""
        if self.keys and self.insecure:
            raise ConfigError("net.insecure is true, and net.keys is set: with keys nobody else may join; choose one")
        if address not in LOOPBACK and not self.insecure and not self.keys:
            raise ConfigError(
                f"{key} is {address!r}: without keys only loopback is bound ({', '.join(LOOPBACK)}). Set net.keys "
                "(zdiloco keygen), or net.insecure = true where you trust everybody who can reach this address"
            )

    def inbox(self, budget_bytes: int) -> InboxParams:
        """How an inbox with so much memory is to work."""
        return InboxParams(
            budget_bytes=budget_bytes,
            window_bytes=self.window_bytes,
            stall_s=self.stall_s,
            give_up_s=self.give_up_s,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayParams:
    """What a relay offers its region; it dials net.connect and net.port. `net.insecure` holds for its address, too."""

    listen: str = knob("127.0.0.1", "address that a relay binds for the learners of its region")
    port: int = knob(5710, "first of four consecutive ports of a relay; its learners' net.port", "port")
    cache_bytes: int = knob(2**31, "memory of a relay for published states, to repair and to join from", "bytes")
    budget_bytes: int = knob(2**28, "memory of a relay for chunks on their way that somebody does not take", "bytes")
    most_learners: int = knob(64, "learners behind one relay; more are turned away", "learners")
    forget_after_s: float = knob(30.0, "a relay hangs up upstream for a learner that is silent for so long", "s")
    premerge: bool = knob(False, "relays merge what their learners send before it goes up; the syncer reads this, too")
    premerge_codec: str = knob("fp32", "how merged values go up: 'fp32', equal to merging at the syncer; or 'bf16'")

    def __post_init__(self) -> None:
        check_knobs(self, "relay", port=(1024, 65532), cache_bytes=(2**16, 2**50), budget_bytes=(2**16, 2**50))
        check_knobs(self, "relay", most_learners=(1, 4096), forget_after_s=(1, 1e6))
        check_choices(self, "relay", premerge_codec=("fp32", "bf16"))
        if not HOST.fullmatch(self.listen):
            raise ConfigError(f"relay.listen is {self.listen!r}; allowed is the name or address of a host")

    def check_listen(self, net: NetParams) -> None:
        """Raise ConfigError for an address beyond loopback without keys or net.insecure."""
        net.check_listen("relay.listen", self.listen)

    def region(self, net: NetParams) -> NetParams:
        """What this relay binds. Raises ConfigError for an address beyond loopback without net.insecure, and for ports
        that are those which it dials."""
        self.check_listen(net)
        if abs(self.port - net.port) < 4 and (net.connect in LOOPBACK or net.connect == self.listen):
            raise ConfigError(
                f"relay.port is {self.port} and net.port {net.port}: a relay would dial itself. Choose a relay.port "
                "that is at least 4 away"
            )
        return replace(net, listen=self.listen, port=self.port)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointParams:
    """What of the past stays on the syncer's disk."""

    keep: int = knob(2, "checkpoints that stay readable; older ones are removed", "checkpoints")

    def __post_init__(self) -> None:
        check_knobs(self, "checkpoint", keep=(1, 1000))


class Settings(Protocol):
    """What a node needs to know, whoever composed it."""

    @property
    def run(self) -> RunParams: ...
    @property
    def sync(self) -> SyncParams: ...
    @property
    def merge(self) -> MergeParams: ...
    @property
    def learner(self) -> LearnerParams: ...
    @property
    def net(self) -> NetParams: ...
    @property
    def checkpoint(self) -> CheckpointParams: ...
    @property
    def relay(self) -> RelayParams: ...
