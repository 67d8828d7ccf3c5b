"""The published kind of table: how busy compute is at each bandwidth, and how much bandwidth it takes to keep it so.

Rule: data-parallel waits for its sum in every step, DiLoCo for a whole model every H steps, both in bf16; a learner of
ours never waits, so a row says how far apart its rounds come and how long they fly. Each link has the rate of the row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zdiloco.plan.bill import ring_bytes
from zdiloco.plan.flight import rounds_of
from zdiloco.plan.model import Model
from zdiloco.plan.params import GBIT, Fleet, Settings
from zdiloco.plan.traffic import all_flows

RATES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Gbit/s."""
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Of compute that is busy, for which the needed bandwidth is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """`data_parallel`, `diloco`: share of the time in which compute is busy; `apart` and `flight`: in inner steps."""

    gbit_s: float
    data_parallel: float
    diloco: float
    apart: float
    flight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Gbit/s of each region's link with which compute is busy for `share` of the time."""

    share: float
    data_parallel: float
    diloco: float


def table_of(
    fleet: Fleet, model: Model, settings: Settings, merge_values_s: float, rates: Sequence[float] = RATES
) -> list[Row]:
    """A row for each rate."""
    step_s = max(region.step_s for region in fleet.regions)
    whole, waits_s = ring_bytes(model, fleet.ends), settings.sync.sync_period * step_s
    rows = []
    for rate in rates:
        there = replace(fleet, regions=tuple(replace(region, gbit_s=rate) for region in fleet.regions))
        rounds = rounds_of(there, model, settings, merge_values_s)
        rows.append(
            Row(
                gbit_s=rate,
                data_parallel=step_s / (step_s + whole / (rate * GBIT)),
                diloco=waits_s / (waits_s + whole / (rate * GBIT)),
                apart=max(trip.turn_s for trip in rounds.trips) / step_s,
                flight=rounds.flight_s / step_s,
            )
        )
    return rows


def needs_of(fleet: Fleet, model: Model, settings: Settings, shares: Sequence[float] = SHARES) -> list[Need]:
    """What data-parallel and DiLoCo need for each share."""
    step_s = max(region.step_s for region in fleet.regions)
    gbit = ring_bytes(model, fleet.ends) / GBIT
    each = [(share, gbit * share / (1 - share) / step_s) for share in shares]
    return [Need(share=share, data_parallel=rate, diloco=rate / settings.sync.sync_period) for share, rate in each]


def needed_gbit_s(fleet: Fleet, model: Model, settings: Settings) -> float:
    """What the busiest region's link must carry in the mean, one way, so that rounds come every H steps."""
    flows = all_flows(fleet, model, settings).values()
    return max((max(up.mean_bytes_s, down.mean_bytes_s) / GBIT for up, down in flows), default=math.nan)
