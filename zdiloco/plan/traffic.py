"""Bytes of a run by role: what a learner, a region and the syncer send and receive from call to call.

Rule: bodies have the lengths that the codecs say; chunk headers and words are added as they are encoded. What a link's
own counters say has the headers of TCP and IP on top (`packets_bytes`), and acknowledgements of what comes the other
way, which are not counted here: 1 or 2 %. A relay takes what is published once for its region; with `relay.premerge` it
sends one bundle for all its learners where that saves a fifth, as `core/bundling.py` decides it.
"""

import math
from dataclasses import dataclass

from zdiloco.core.bundling import WORTH
from zdiloco.plan.model import Model
from zdiloco.plan.params import GBIT, Fleet, Region, Settings
from zdiloco.plan.road import PAYLOAD
from zdiloco.wire.encoding import encode
from zdiloco.wire.transfer import Chunk

FRAME_BYTES = 9
"""What ZMTP puts before a frame at most."""
WORD_BYTES = 60 + FRAME_BYTES
"""A word with its frame in the mean: reports and beats mostly, and offers, acks, credits."""
WORDS_UP, WORDS_DOWN = 2, 4
"""Words for each fragment in a period, beside its body: offer and receipt; call, update, credit and ack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """Mean and peak of one way, in bytes per second. `period_bytes`: from one call of a fragment to the next;
    `packets_bytes`: the same with the headers of the packets."""

    period_bytes: float
    packets_bytes: float
    mean_bytes_s: float
    peak_bytes_s: float

    @property
    def gbit_s(self) -> tuple[float, float]:
        """Mean and peak, in Gbit/s."""
        return self.mean_bytes_s / GBIT, self.peak_bytes_s / GBIT


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How often things happen: the seconds of an inner step here, and those from call to call of a fragment."""

    step_s: float
    period_s: float


def boundary_s(at_s: float, step_s: float) -> float:
    """The first step boundary at or after a moment, counted from a boundary, and not that one itself."""
    return step_s * max(1, math.ceil(at_s / step_s - 1e-9))


def period_s(fleet: Fleet, settings: Settings) -> float:
    """From call to call: H steps of the K-th fastest since its cut, which it made a round trip after it was due."""
    paces = sorted((r.step_s, r.rtt_s) for r in fleet.regions for _ in range(r.learners))
    step_s, rtt_s = paces[settings.sync.min_quorum - 1]
    return settings.sync.sync_period * step_s + boundary_s(rtt_s, step_s)


def chunked(nbytes: float, parts: int, settings: Settings) -> float:
    """Bytes of so many bodies together, with what goes before each chunk."""
    header = len(encode(Chunk(transfer="0" * 16, index=0, checksum=2**63))) + 2 * FRAME_BYTES
    return nbytes + header * (nbytes / settings.net.chunk_bytes + parts)


def bundles(region: Region, model: Model, settings: Settings) -> bool:
    """Whether its relay merges what its learners send before it goes up."""
    if not (region.relay and settings.relay.premerge) or region.learners < 2:
        return False
    return model.bundles(settings.relay.premerge_codec) <= WORTH * region.learners * model.encoded(settings.codec)


def copies_up(region: Region, model: Model, settings: Settings) -> int:
    """Bodies that its link carries up for one round."""
    return 1 if bundles(region, model, settings) else region.learners


def copies_down(region: Region) -> int:
    """Bodies that its link carries down for one round."""
    return 1 if region.relay else region.learners


def body_up(region: Region, model: Model, settings: Settings) -> tuple[int, int]:
    """Bytes of one turn of all fragments, and of the largest one, for each body that its link carries up."""
    if not bundles(region, model, settings):
        return model.encoded(settings.codec), model.largest(settings.codec)
    codec = settings.relay.premerge_codec
    return model.bundles(codec), model.largest(codec)


def learner_flows(model: Model, settings: Settings, pace: Pace) -> tuple[Flow, Flow]:
    """What one learner sends and receives, by its own sockets."""
    up = (model.encoded(settings.codec), model.largest(settings.codec), 1)
    down = (model.encoded(settings.published), model.largest(settings.published), 1)
    return _flow(up, model, settings, pace, _talk(WORDS_UP, 1, settings, pace)), _flow(
        down, model, settings, pace, _talk(WORDS_DOWN, 1, settings, pace)
    )


def region_flows(region: Region, model: Model, settings: Settings, period_s: float) -> tuple[Flow, Flow]:
    """What the link of a region carries, up and down."""
    pace, many = Pace(step_s=region.step_s, period_s=period_s), region.learners
    up = (*body_up(region, model, settings), copies_up(region, model, settings))
    down = (model.encoded(settings.published), model.largest(settings.published), copies_down(region))
    return _flow(up, model, settings, pace, _talk(WORDS_UP, many, settings, pace)), _flow(
        down, model, settings, pace, _talk(WORDS_DOWN, many, settings, pace)
    )


def all_flows(fleet: Fleet, model: Model, settings: Settings) -> dict[str, tuple[Flow, Flow]]:
    """Those of every region, by name."""
    every_s = period_s(fleet, settings)
    return {region.name: region_flows(region, model, settings, every_s) for region in fleet.regions}


def syncer_flows(fleet: Fleet, model: Model, settings: Settings) -> tuple[Flow, Flow]:
    """What the syncer receives and sends: all regions together."""
    pairs = all_flows(fleet, model, settings).values()
    return _sum([up for up, _ in pairs]), _sum([down for _, down in pairs])


def _talk(words: int, many: int, settings: Settings, pace: Pace) -> tuple[float, float]:
    """Words of so many learners: those that each body brings, and how many more a second: a report a step at most, and
    beats."""
    sync = settings.sync
    reports = 1 / max(pace.step_s, sync.report_every_s) if words == WORDS_UP else 0.0
    return many * words, many * (reports + 1 / sync.beat_every_s)


def _flow(
    bodies: tuple[int, int, int], model: Model, settings: Settings, pace: Pace, talk: tuple[float, float]
) -> Flow:
    """Bodies: bytes of all fragments, of the largest one, and how many of each there are."""
    parts, (whole, largest, copies) = len(model.numels), bodies
    words_s = WORD_BYTES * (talk[0] * parts / pace.period_s + talk[1])
    nbytes = copies * chunked(whole, parts, settings)
    in_a_step = math.ceil(parts / settings.sync.sync_period)
    period_bytes = nbytes + words_s * pace.period_s
    most = min(nbytes, copies * in_a_step * chunked(largest, 1, settings))
    return Flow(
        period_bytes=period_bytes,
        packets_bytes=period_bytes / PAYLOAD,
        mean_bytes_s=nbytes / pace.period_s + words_s,
        peak_bytes_s=most / pace.step_s + words_s,
    )


def _sum(flows: list[Flow]) -> Flow:
    return Flow(
        period_bytes=sum(each.period_bytes for each in flows),
        packets_bytes=sum(each.packets_bytes for each in flows),
        mean_bytes_s=sum(each.mean_bytes_s for each in flows),
        peak_bytes_s=sum(each.peak_bytes_s for each in flows),
    )
