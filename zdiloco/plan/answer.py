"""A whole plan: every part of it for one fleet, one model and one set of settings."""

from dataclasses import asdict, dataclass
from typing import Any

from zdiloco.plan.advice import advise
from zdiloco.plan.bandwidths import Need, Row, needed_gbit_s, needs_of, table_of
from zdiloco.plan.bill import Bill, bill_of
from zdiloco.plan.flight import MERGE_VALUES_S, Rounds, rounds_of, syncer_load
from zdiloco.plan.model import Model
from zdiloco.plan.params import Fleet, Settings, check_quorum
from zdiloco.plan.room import Room, room_of
from zdiloco.plan.traffic import Flow, Pace, all_flows, learner_flows, period_s, syncer_flows

Both = tuple[Flow, Flow]
"""What is sent, and what is received; of a region: up, and down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is to be planned. `price`: for 10^9 bytes that leave; `days`: how long the run is; 0: not said."""

    fleet: Fleet
    model: Model
    settings: Settings
    price: float = 0.0
    days: float = 0.0
    merge_values_s: float = MERGE_VALUES_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The plan. `flows`: of each role, by name. `keeps_pace`: rounds come every H steps on these links."""

    flows: dict[str, Both]
    rounds: Rounds
    room: Room
    bill: Bill | None
    table: list[Row]
    needs: list[Need]
    needed_gbit_s: float
    advice: list[str]
    keeps_pace: bool

    def to_obj(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        whole = asdict(self)
        whole["flows"] = {name: [asdict(up), asdict(down)] for name, (up, down) in self.flows.items()}
        return {**whole, "compute_busy": 1.0}


def plan(asked: Asked) -> Answer:
    """The plan of what is asked. Raises: ConfigError."""
    fleet, model, settings = asked.fleet, asked.model, asked.settings
    check_quorum(fleet, settings)
    rounds = rounds_of(fleet, model, settings, asked.merge_values_s)
    room = room_of(fleet, model, settings, rounds)
    pace = Pace(step_s=min(r.step_s for r in fleet.regions), period_s=period_s(fleet, settings))
    flows = {"learner": learner_flows(model, settings, pace)} | all_flows(fleet, model, settings)
    into, out = syncer_flows(fleet, model, settings)
    loads = [load for trip in rounds.trips for load in (trip.up_load, trip.down_load)]
    return Answer(
        flows=flows | {"syncer": (out, into)},
        rounds=rounds,
        room=room,
        bill=bill_of(fleet, model, settings, asked.price, asked.days) if asked.price else None,
        table=table_of(fleet, model, settings, asked.merge_values_s),
        needs=needs_of(fleet, model, settings),
        needed_gbit_s=needed_gbit_s(fleet, model, settings),
        advice=advise(fleet, model, settings, rounds, room),
        keeps_pace=max(*loads, rounds.merge_load, syncer_load(fleet, model, settings)) <= 1.0,
    )
