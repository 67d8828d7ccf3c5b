"""What to change where a run would not keep up: each line names what is short, and the setting that helps.

Rule: compute stays busy whatever is short, since a learner never waits; what suffers is how soon its work is merged. A
remedy is named only where the same arithmetic says that it suffices.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from zdiloco.plan.flight import Rounds, rounds_of, syncer_load
from zdiloco.plan.model import Model
from zdiloco.plan.params import Fleet, Region, Settings
from zdiloco.plan.road import road_bytes_s
from zdiloco.plan.room import Room
from zdiloco.plan.traffic import copies_up, period_s
from zdiloco.wire.flow import MAX_WINDOW_BYTES
from zdiloco.wire.stripes import MOST_STRIPES

FULL = 0.9
"""A link or a merge thread that is busier than this falls behind whenever anything goes wrong."""
CODECS = ("bf16", "int8", "4bit")
DELTAS = ("none", "int8", "4bit")


def advise(fleet: Fleet, model: Model, settings: Settings, rounds: Rounds, room: Room) -> list[str]:
    """Lines for people; none: nothing is short."""
    found: list[str] = []
    for region, names in _alike(fleet).items():
        found += (f"{names}: {line}" for line in _link(region, fleet, model, settings))
    if (load := syncer_load(fleet, model, settings)) > FULL:
        found.append(
            f"the syncer's link is to carry {load:.2f} of what it can: another codec, relays, a faster link, or "
            f"sync.sync_period = {math.ceil(settings.sync.sync_period * load / FULL)}"
        )
    if rounds.merge_load > FULL:
        times = math.ceil(rounds.merge_load / FULL * settings.sync.sync_period)
        found.append(
            f"the syncer merges for {rounds.merge_load:.2f} of its time on two cores: more cores (--merge-rate), "
            f"relay.premerge, or sync.sync_period = {times}"
        )
    slow = max(rounds.trips, key=lambda trip: trip.flight_s)
    every_s = period_s(fleet, settings)
    if slow.flight_s > every_s:
        found.append(
            f"{slow.region}: a round flies {slow.flight_s:.1f} s, longer than the {every_s:.1f} s from call to call: "
            "merged work is more than one version old; raise sync.sync_period or sync.num_fragments"
        )
    found += [
        f"{trip.region}: its contributions come after the grace window, so they are merged a round later; "
        f"sync.min_quorum = {fleet.learners} waits for them, sync.adaptive = true may"
        for trip in rounds.trips
        if not trip.in_time
    ]
    return [*found, *_memory(model, settings, room)]


def _alike(fleet: Fleet) -> dict[Region, str]:
    """A region for each kind of them, with the names of all of that kind."""
    names: dict[Region, list[str]] = {}
    for region in fleet.regions:
        names.setdefault(replace(region, name="one"), []).append(region.name)
    return {region: ", ".join(found) for region, found in names.items()}


def _link(region: Region, fleet: Fleet, model: Model, settings: Settings) -> Iterator[str]:
    copies, link = copies_up(region, model, settings), region.link_bytes_s
    can = road_bytes_s(region, settings, copies)
    if can < FULL * link and _load(region, fleet, model, settings, False, "up") > FULL / 2:
        wide = min(MAX_WINDOW_BYTES, math.ceil(link / copies * region.rtt_s / 2**20) * 2**20)
        wider = replace(settings, net=replace(settings.net, window_bytes=max(wide, settings.net.window_bytes)))
        striped = replace(wider, net=replace(wider.net, stripes=MOST_STRIPES))
        if road_bytes_s(region, wider, copies) > can:
            yield f"windows of {settings.net.window_bytes} bytes fill {can / link:.1%} of its link; set " \
                  f"net.window_bytes = {wide}"  # fmt: skip
            settings, can = wider, road_bytes_s(region, wider, copies)
        if can < FULL * link and road_bytes_s(region, striped, copies) > can:
            kept, name = f"{can / link:.1%}", region.congestion
            yield f"a loss of {region.loss:g} leaves {kept} of its link to TCP's {name}; use BBR, and set " \
                  f"net.stripes = {MOST_STRIPES}"  # fmt: skip
            settings = striped
    for way in ("up", "down"):
        load = _load(region, fleet, model, settings, False, way)
        if load > FULL:
            yield f"its link is to carry {load:.2f} of what it can, {way}; " \
                  f"{_remedy(region, fleet, model, settings, way)}"  # fmt: skip


def _remedy(region: Region, fleet: Fleet, model: Model, settings: Settings, way: str) -> str:
    """The mildest change of one setting that makes room on this way of the link, or else the period that would."""
    tries: list[tuple[str, Settings, bool]] = [("a relay (relay)", settings, True)] if not region.relay else []
    if way == "up":
        later = CODECS[CODECS.index(settings.codec) + 1 :] if settings.codec in CODECS else CODECS
        tries = [
            (f"learner.codec = '{each}'", replace(settings, learner=replace(settings.learner, codec=each)), False)
            for each in later
        ]
        premerged = replace(settings, relay=replace(settings.relay, premerge=True))
        if settings.merge.robust == "none":  # else each has to be seen
            tries.append(("a relay with relay.premerge = true", premerged, True))
    else:
        tries += [
            (f"merge.delta_codec = '{each}'", replace(settings, merge=replace(settings.merge, delta_codec=each)), False)
            for each in DELTAS[DELTAS.index(settings.merge.delta_codec) + 1 :]
        ]
    for what, changed, relayed in tries:
        if _load(region, fleet, model, changed, relayed, way) <= FULL:
            return f"{what} makes it {_load(region, fleet, model, changed, relayed, way):.2f}"
    load = _load(region, fleet, model, settings, False, way)
    return f"sync.sync_period = {math.ceil(settings.sync.sync_period * load / FULL)} makes it {FULL:g}"


def _load(region: Region, fleet: Fleet, model: Model, settings: Settings, relayed: bool, way: str) -> float:
    """How full the link of a region is, by itself, on this way; `relayed`: had it a relay."""
    place = replace(region, relay=region.relay or relayed)
    least = replace(settings, sync=replace(settings.sync, min_quorum=1))
    trip = rounds_of(replace(fleet, regions=(place,)), model, least).trips[0]
    return trip.up_load if way == "up" else trip.down_load


def _memory(model: Model, settings: Settings, room: Room) -> Iterator[str]:
    """Bounds in bytes that are too small for this model."""
    bounds = (
        ("sync.budget_bytes", settings.sync.budget_bytes, room.held, "contributions wait for memory at the syncer"),
        ("learner.kept_max_bytes", settings.learner.kept_max_bytes, room.kept, "learners contribute nothing at times"),
        ("net.receive_bytes", settings.net.receive_bytes, 2.0 * model.largest(settings.merge.publish_codec),
         "updates wait for memory at a learner"),
        ("relay.cache_bytes", settings.relay.cache_bytes, room.relay, "a relay forgets what its region still needs"),
    )  # fmt: skip
    for key, value, need, what in bounds:
        if need > value:
            yield f"{key} is {value}: {what}; set it to {_round_up(need)}"


def _round_up(nbytes: float) -> int:
    """A power of two that holds so many bytes."""
    return 1 << max(0, math.ceil(math.log2(nbytes)))
