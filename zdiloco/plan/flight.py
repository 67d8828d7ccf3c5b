"""How long a round takes, from its call until its outcome is adopted, and how long its grace window is.

Rule: the window is what `core/grace.py` makes of these times, the very code of a run. Bodies of the same round queue on
the link of their region and on that of the syncer. Where a learner takes longer for all its fragments than a period,
because its link is full or by its uplink's turns (`turns.py`), its contributions wait for each other: a fragment is due
H steps after its last cut, so all beyond a period that it takes from call to call is waiting between call and cut; and
at the soonest when its last round is over, so no answer takes longer than that.
"""

from dataclasses import dataclass

from zdiloco.core.grace import GraceInputs, grace_ends
from zdiloco.plan.model import Model
from zdiloco.plan.params import GBIT, Fleet, Region, Settings
from zdiloco.plan.road import carried_bytes_s, road_bytes_s
from zdiloco.plan.traffic import all_flows, body_up, boundary_s, chunked, copies_down, copies_up, period_s, syncer_flows
from zdiloco.plan.turns import Turns, turns_of

MERGE_VALUES_S = 1e9
"""Values of contributions that a syncer of two cores screens and merges in a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trip:
    """One region. `up_load`, `down_load`: what its link is to carry ÷ what it can; `turn_s`: from call to call of a
    fragment, were it alone; `answer_s`: from the call until its contributions are there; `down_s`: from the outcome
    until it is there; `flight_s`: from call to adoption.
    """

    region: str
    up_load: float
    down_load: float
    turn_s: float
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


def rounds_of(fleet: Fleet, model: Model, settings: Settings, merge_values_s: float = MERGE_VALUES_S) -> Rounds:
    """What to expect of every round once a run is under way."""
    loads, every_s = _loads(fleet, model, settings), period_s(fleet, settings)
    up = sum(copies_up(r, model, settings) * body_up(r, model, settings)[1] for r in fleet.regions)
    bodies_s = {r.name: _body_s(r, model, settings, up / (fleet.syncer_gbit_s * GBIT)) for r in fleet.regions}
    parts = len(model.numels)
    turns = {r.name: turns_of(r, bodies_s[r.name], every_s / parts, settings) for r in fleet.regions}
    soonest = {r.name: _answer_s(r, bodies_s[r.name]) for r in fleet.regions}
    needs = {
        name: max(every_s * max(1.0, *loads[name]), parts * each.each_s, soonest[name]) for name, each in turns.items()
    }
    bodies = sum(copies_up(region, model, settings) for region in fleet.regions)
    merge_load = bodies * model.parameters / merge_values_s / every_s
    apart_s = max(every_s * merge_load, _of_quorum(fleet, needs, settings))
    answers = {
        name: min(soonest[name] + _waits_s(need_s, apart_s, every_s, turns[name]), need_s)
        for name, need_s in needs.items()
    }
    everybody = sorted((answers[r.name], r.step_s) for r in fleet.regions for _ in range(r.learners))
    quorum_s = everybody[settings.sync.min_quorum - 1][0]
    sync_s = bodies * max(model.numels) / merge_values_s
    grace_s = _grace_s(everybody, quorum_s, sync_s, settings)
    in_time = {name: answer <= quorum_s + grace_s * (1 + 1e-9) for name, answer in answers.items()}
    closed_s = quorum_s + grace_s + sync_s
    down = sum(copies_down(region) for region in fleet.regions) * model.largest(settings.published)
    downs = {r.name: _down_s(r, model, settings, down / (fleet.syncer_gbit_s * GBIT)) for r in fleet.regions}
    trips = tuple(
        Trip(
            region=r.name, up_load=loads[r.name][0], down_load=loads[r.name][1], turn_s=needs[r.name],
            answer_s=answers[r.name], down_s=downs[r.name], flight_s=_adopted_s(r, closed_s + downs[r.name]),
            in_time=in_time[r.name],
        )
        for r in fleet.regions
    )  # fmt: skip
    return Rounds(
        trips=trips, quorum_s=quorum_s, grace_s=grace_s, sync_s=sync_s, merge_load=merge_load, apart_s=apart_s,
        participants=sum(r.learners for r in fleet.regions if in_time[r.name]),
    )  # fmt: skip


def syncer_load(fleet: Fleet, model: Model, settings: Settings) -> float:
    """What the syncer's link is to carry ÷ what it can, the fuller way."""
    return max(flow.mean_bytes_s for flow in syncer_flows(fleet, model, settings)) / (fleet.syncer_gbit_s * GBIT)


def _of_quorum(fleet: Fleet, needs: dict[str, float], settings: Settings) -> float:
    """From call to call, as those allow it on whom the K-th contribution of each round depends."""
    return sorted(needs[r.name] for r in fleet.regions for _ in range(r.learners))[settings.sync.min_quorum - 1]


def _waits_s(need_s: float, apart_s: float, every_s: float, turns: Turns) -> float:
    """What an answer waits for others of its learner, before the cut and on the link: nothing, where calls leave a
    learner more time than it needs; what is called again before it could answer it answers at any time until then."""
    if need_s < apart_s * (1 - 1e-9):
        return 0.0
    return turns.queue_s + min(need_s - every_s, max(apart_s - every_s, apart_s / 2))


def _loads(fleet: Fleet, model: Model, settings: Settings) -> dict[str, tuple[float, float]]:
    flows, loads = all_flows(fleet, model, settings), {}
    for region in fleet.regions:
        up, down = flows[region.name]
        can = road_bytes_s(region, settings, copies_up(region, model, settings))
        loads[region.name] = up.mean_bytes_s / can, down.mean_bytes_s / carried_bytes_s(region)
    return loads


def _body_s(region: Region, model: Model, settings: Settings, at_syncer_s: float) -> float:
    """What the contributions of one round take on the link of their region, or all of them on that of the syncer."""
    copies = copies_up(region, model, settings)
    nbytes = copies * chunked(body_up(region, model, settings)[1], 1, settings)
    return max(nbytes / road_bytes_s(region, settings, copies), at_syncer_s)


def _answer_s(region: Region, body_s: float) -> float:
    """Call, cut at the next step boundary, offer, credit, body; it was due at a boundary, half a round trip before."""
    return boundary_s(region.rtt_s, region.step_s) - region.rtt_s / 2 + 1.5 * region.rtt_s + body_s


def _adopted_s(region: Region, here_s: float) -> float:
    """From the call until the step boundary at which an update that is here then is adopted."""
    return boundary_s(region.rtt_s / 2 + here_s, region.step_s) - region.rtt_s / 2


def _down_s(region: Region, model: Model, settings: Settings, at_syncer_s: float) -> float:
    nbytes = copies_down(region) * chunked(model.largest(settings.published), 1, settings)
    return region.rtt_s / 2 + max(nbytes / carried_bytes_s(region), at_syncer_s)


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
