"""What a provider asks for bytes that leave a region or the syncer's site, beside what data-parallel would cost.

Rule: data-parallel sums its gradients in bf16 by a ring between regions (between learners, if there is one region),
once in every step: each end sends 2 (n - 1) / n times the model. Its learners are thought to step as fast as ours.
"""

from dataclasses import dataclass

from zdiloco.plan.model import Model
from zdiloco.plan.params import Fleet, Settings
from zdiloco.plan.traffic import all_flows

DAY_S = 86_400.0
GB = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """In the currency of the price. `run` and `ring_run` are 0 where the length of the run is not said."""

    day: float
    run: float
    ring_day: float
    ring_run: float


def ring_bytes(model: Model, ends: int) -> float:
    """Bytes that each of so many ends sends in a step of data-parallel training."""
    return 2 * (ends - 1) / ends * model.encoded("bf16")


def bill_of(fleet: Fleet, model: Model, settings: Settings, price: float, days: float = 0.0) -> Bill:
    """At `price` for 10^9 bytes that leave."""
    flows = all_flows(fleet, model, settings).values()
    ours = sum(up.mean_bytes_s + down.mean_bytes_s for up, down in flows) * DAY_S / GB * price
    step_s = max(region.step_s for region in fleet.regions)
    ring = fleet.ends * ring_bytes(model, fleet.ends) / step_s * DAY_S / GB * price
    return Bill(day=ours, run=ours * days, ring_day=ring, ring_run=ring * days)
