"""How long a round takes, from its call until its outcome is adopted, and how long its grace window is.

Rule: the window is what `core/grace.py` makes of these times, the very code of a run. Bodies of the same round queue on
the link of their region and on that of the syncer; rounds of other fragments do not, as long as no link is full. A road
carries at most a window in each round trip and, where packets vanish, what TCP's congestion control makes of it.
"""

import math
from dataclasses import dataclass

from zdiloco.core.grace import GraceInputs, grace_ends
from zdiloco.plan.model import Model
from zdiloco.plan.params import GBIT, Fleet, Region, Settings
from zdiloco.plan.traffic import all_flows, body_up, boundary_s, chunked, copies_down, copies_up, period_s, syncer_flows

MERGE_VALUES_S = 1e9
"""Values of contributions that a syncer of two cores screens and merges in a second."""
SEGMENT_BYTES = 1448
CUBIC = 1.22
"""A connection carries about so many segments over the square root of the loss in each round trip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trip:
    """One region. `up_load`, `down_load`: what its link is to carry ÷ what it can; `answer_s`: from the call until its
    contributions are there; `down_s`: from the outcome until it is there; `flight_s`: from call to adoption.
    """

    region: str
    up_load: float
    down_load: float
    answer_s: float
    down_s: float
    flight_s: float
    in_time: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """All regions, and what every round has: `sync_s`: merge and publication; `participants`: of M learners in the
    mean; `apart_s`: from call to call of a fragment; `merge_load`: share of its time that a syncer merges.
    """

    trips: tuple[Trip, ...]
    quorum_s: float
    grace_s: float
    sync_s: float
    participants: int
    apart_s: float
    merge_load: float

    @property
    def flight_s(self) -> float:
        """The longest of all regions."""
        return max(trip.flight_s for trip in self.trips)


def road_bytes_s(region: Region, settings: Settings, copies: int) -> float:
    """What so many learners of a region bring up together: no more than the link, their windows, and loss allow."""
    alone = math.inf
    if region.rtt_s > 0:
        alone = settings.net.window_bytes / region.rtt_s
        if region.loss > 0:
            lossy = CUBIC * SEGMENT_BYTES / (region.rtt_s * math.sqrt(region.loss))
            alone = min(alone, lossy * settings.net.stripes)
    return min(region.link_bytes_s, copies * alone)


def rounds_of(fleet: Fleet, model: Model, settings: Settings, merge_values_s: float = MERGE_VALUES_S) -> Rounds:
    """What to expect of every round once a run is under way."""
    loads = _loads(fleet, model, settings)
    up = sum(copies_up(r, model, settings) * body_up(r, model, settings)[1] for r in fleet.regions)
    answers = {r.name: _answer_s(r, model, settings, up / (fleet.syncer_gbit_s * GBIT)) for r in fleet.regions}
    everybody = sorted((answers[r.name], r.step_s) for r in fleet.regions for _ in range(r.learners))
    quorum_s = everybody[settings.sync.min_quorum - 1][0]
    bodies = sum(copies_up(region, model, settings) for region in fleet.regions)
    sync_s = bodies * max(model.numels) / merge_values_s
    grace_s = _grace_s(everybody, quorum_s, sync_s, settings)
    in_time = {name: answer <= quorum_s + grace_s * (1 + 1e-9) for name, answer in answers.items()}
    closed_s = quorum_s + grace_s + sync_s
    down = sum(copies_down(region) for region in fleet.regions) * model.largest(settings.published)
    downs = {r.name: _down_s(r, model, settings, down / (fleet.syncer_gbit_s * GBIT)) for r in fleet.regions}
    trips = tuple(
        Trip(
            region=r.name, up_load=loads[r.name][0], down_load=loads[r.name][1], answer_s=answers[r.name],
            down_s=downs[r.name], flight_s=_adopted_s(r, closed_s + downs[r.name]), in_time=in_time[r.name],
        )
        for r in fleet.regions
    )  # fmt: skip
    every_s = period_s(fleet, settings)
    merge_load = bodies * model.parameters / merge_values_s / every_s
    return Rounds(
        trips=trips, quorum_s=quorum_s, grace_s=grace_s, sync_s=sync_s, merge_load=merge_load,
        participants=sum(r.learners for r in fleet.regions if in_time[r.name]),
        apart_s=every_s * max(1.0, merge_load, _least_full(fleet, loads, settings)),
    )  # fmt: skip


def syncer_load(fleet: Fleet, model: Model, settings: Settings) -> float:
    """What the syncer's link is to carry ÷ what it can, the fuller way."""
    return max(flow.mean_bytes_s for flow in syncer_flows(fleet, model, settings)) / (fleet.syncer_gbit_s * GBIT)


def _least_full(fleet: Fleet, loads: dict[str, tuple[float, float]], settings: Settings) -> float:
    """How full the link is on which the K-th contribution of each round depends."""
    full = sorted(loads[region.name][0] for region in fleet.regions for _ in range(region.learners))
    return full[settings.sync.min_quorum - 1]


def _loads(fleet: Fleet, model: Model, settings: Settings) -> dict[str, tuple[float, float]]:
    flows, loads = all_flows(fleet, model, settings), {}
    for region in fleet.regions:
        up, down = flows[region.name]
        can = road_bytes_s(region, settings, copies_up(region, model, settings))
        loads[region.name] = up.mean_bytes_s / can, down.mean_bytes_s / region.link_bytes_s
    return loads


def _answer_s(region: Region, model: Model, settings: Settings, at_syncer_s: float) -> float:
    """Call, cut at the next step boundary, offer, credit, body; it was due at a boundary, half a round trip before."""
    copies = copies_up(region, model, settings)
    nbytes = copies * chunked(body_up(region, model, settings)[1], 1, settings)
    bytes_s = road_bytes_s(region, settings, copies)
    cut_s = boundary_s(region.rtt_s, region.step_s) - region.rtt_s / 2
    return cut_s + 1.5 * region.rtt_s + max(nbytes / bytes_s, at_syncer_s)


def _adopted_s(region: Region, here_s: float) -> float:
    """From the call until the step boundary at which an update that is here then is adopted."""
    return boundary_s(region.rtt_s / 2 + here_s, region.step_s) - region.rtt_s / 2


def _down_s(region: Region, model: Model, settings: Settings, at_syncer_s: float) -> float:
    nbytes = copies_down(region) * chunked(model.largest(settings.published), 1, settings)
    return region.rtt_s / 2 + max(nbytes / region.link_bytes_s, at_syncer_s)


def _grace_s(everybody: list[tuple[float, float]], quorum_s: float, sync_s: float, settings: Settings) -> float:
    inputs = GraceInputs(
        called_at=0.0,
        quorum_at=quorum_s,
        step_s=min(step_s for _, step_s in everybody),
        quorum_s=quorum_s,
        sync_s=sync_s,
        waiting_steps_s=[step_s for answer_s, step_s in everybody if answer_s > quorum_s],
        answers_s=[answer_s for answer_s, _ in everybody],
    )
    ends = grace_ends(inputs, settings.sync)[0] - quorum_s
    last = max(answer_s for answer_s, _ in everybody) - quorum_s
    return max(0.0, min(ends, last))  # a round closes as soon as everybody is in
