"""What a role needs of a machine and its link: rates, memory, disk, descriptors. Arithmetic over the settings.

Rule: bytes and rates are those of `zdiloco plan`, for one region; nothing is measured here.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from zdiloco.node.relay_roads import OWN, PER_LEARNER, PER_STRIPE, most_sockets
from zdiloco.plan.answer import Answer, Asked, plan
from zdiloco.plan.room import FP32, MOMENTS

TORCH_BYTES = 4e8
"""A process that has loaded torch, before it holds anything."""
RELAY_BYTES = 6e7
OWN_DESCRIPTORS = 64
"""What a process has open beside its peers: files, libraries, mailboxes."""


class Role(StrEnum):
    """Which process is to run here."""

    LEARNER = "learner"
    SYNC = "sync"
    RELAY = "relay"


@dataclass(frozen=True, kw_only=True, slots=True)
class Writes:
    """What a role keeps on its disk, and how fast it writes: every `every_s`, the setting `key`. Empty: nothing."""

    nbytes: float = 0.0
    bytes_s: float = 0.0
    key: str = ""
    every_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Codes:
    """Values a second that a role encodes and decodes, and in which codecs. Empty: none."""

    encoded: str = ""
    encode_values_s: float = 0.0
    decoded: str = ""
    decode_values_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Bytes, and bytes a second. `up`: sent to who is dialled; `burst_bytes`: the largest body; `period`: H;
    `ups`, `downs`: the connections that share what goes up and down, `lanes`: peers that have a window each."""

    role: Role
    up_bytes_s: float
    down_bytes_s: float
    burst_bytes: float
    period: int
    window_bytes: int
    stripes: int
    lanes: int
    ups: int
    downs: int
    memory_bytes: float
    descriptors: int
    sockets: int
    disk: Writes
    codec: Codes


def together(need: Need, processes: int) -> Need:
    """What so many processes alike need of the machine and the link that they share."""
    disk = replace(need.disk, nbytes=processes * need.disk.nbytes, bytes_s=processes * need.disk.bytes_s)
    return replace(
        need, up_bytes_s=processes * need.up_bytes_s, down_bytes_s=processes * need.down_bytes_s, disk=disk,
        memory_bytes=processes * need.memory_bytes,
    )  # fmt: skip


def need_of(role: Role, asked: Asked, *, on_cpu: bool = True) -> Need:
    """What a role needs in the run that is planned; `on_cpu`: a learner's model lies in this memory, too.

    Raises: ConfigError for a plan that cannot be.
    """
    planned = plan(asked)
    settings, parameters = asked.settings, asked.model.parameters
    region, stripes = asked.fleet.regions[0], asked.settings.net.stripes
    flows = {Role.LEARNER: "learner", Role.SYNC: "syncer", Role.RELAY: region.name}
    up, down = planned.flows[flows[role]]
    memory, descriptors = _memory(role, planned, parameters if on_cpu else 0), _descriptors(role, asked)
    each_s = parameters / planned.rounds.apart_s
    return Need(
        role=role,
        up_bytes_s=up.mean_bytes_s,
        down_bytes_s=down.mean_bytes_s,
        burst_bytes=asked.model.largest(settings.codec),
        period=settings.sync.sync_period,
        window_bytes=settings.net.window_bytes,
        stripes=stripes,
        **_connections(role, asked),
        memory_bytes=memory,
        descriptors=descriptors,
        sockets=most_sockets(settings.net, settings.relay) if role is Role.RELAY else 8 + stripes,
        disk=_disk(role, asked, planned),
        codec=_codecs(role, asked, each_s),
    )


def _connections(role: Role, asked: Asked) -> dict[str, int]:
    """Stripes are for what goes up to a syncer; what is published comes by one connection."""
    stripes, learners = asked.settings.net.stripes, asked.fleet.learners
    if role is Role.SYNC:
        return {"lanes": learners, "ups": learners, "downs": stripes * learners}
    lanes = learners if role is Role.RELAY and not asked.settings.relay.premerge else 1
    return {"lanes": lanes, "ups": stripes * lanes, "downs": 1}


def _memory(role: Role, planned: Answer, own: int) -> float:
    if role is Role.LEARNER:
        return TORCH_BYTES + planned.room.learner + FP32 * (2 + MOMENTS) * own  # values, gradients, moments
    return RELAY_BYTES + planned.room.relay if role is Role.RELAY else TORCH_BYTES + planned.room.syncer


def _descriptors(role: Role, asked: Asked) -> int:
    stripes, fleet = asked.settings.net.stripes, asked.fleet.learners
    if role is Role.RELAY:
        return OWN + (PER_LEARNER + PER_STRIPE * stripes) * (asked.settings.relay.most_learners + 1)
    return OWN_DESCRIPTORS + (3 + stripes) * (fleet if role is Role.SYNC else 2)


def _disk(role: Role, asked: Asked, planned: Answer) -> Writes:
    if role is Role.RELAY:
        return Writes()
    room, every_s = planned.room, asked.settings.learner.save_every_s
    if role is Role.SYNC:
        every_s = asked.settings.sync.checkpoint_every_s
        key = "sync.checkpoint_every_s"
        return Writes(nbytes=room.syncer_disk, bytes_s=room.disk_bytes_s, key=key, every_s=every_s)
    rate = room.learner_disk / every_s if every_s else 0.0
    return Writes(nbytes=room.learner_disk, bytes_s=rate, key="learner.save_every_s", every_s=every_s)


def _codecs(role: Role, asked: Asked, each_s: float) -> Codes:
    """A learner encodes all its values once a period, and decodes what is published; at a syncer it is the other way
    round, and it decodes those of everybody."""
    sends, published = asked.settings.codec, asked.settings.published
    if role is Role.LEARNER:
        return Codes(encoded=sends, encode_values_s=each_s, decoded=published, decode_values_s=each_s)
    if role is Role.SYNC:
        everybody = each_s * asked.fleet.learners
        return Codes(encoded=published, encode_values_s=each_s, decoded=sends, decode_values_s=everybody)
    return Codes()
