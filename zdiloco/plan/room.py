"""Memory and disk by role, beside a learner's own model, gradients and optimizer. Bytes, at most."""

from dataclasses import dataclass

from zdiloco.plan.flight import Rounds
from zdiloco.plan.model import Model
from zdiloco.plan.params import Fleet, Settings
from zdiloco.plan.traffic import Pace, learner_flows, period_s

FP32 = 4
WORK_VECTORS = 4
"""Work vectors of a fragment that a learner uses again and again (docs/operating.md, Memory and traffic)."""
MOMENTS = 2
"""Of AdamW, fp32 each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Bytes. `kept`: of them, what a learner keeps of contributions until they are stable; `held`: contributions under
    way or held at the syncer; `disk_bytes_s`: what a syncer writes.
    """

    learner: float
    kept: float
    learner_disk: float
    syncer: float
    held: float
    syncer_disk: float
    disk_bytes_s: float
    relay: float


def room_of(fleet: Fleet, model: Model, settings: Settings, rounds: Rounds) -> Room:
    """What each role needs once a run is under way."""
    sync, values = settings.sync, FP32 * model.parameters
    fastest = min(region.step_s for region in fleet.regions)
    every_s = period_s(fleet, settings)
    up, _ = learner_flows(model, settings, Pace(step_s=fastest, period_s=every_s))
    kept = up.mean_bytes_s * (sync.checkpoint_every_s + rounds.flight_s)
    state = MOMENTS * values if settings.learner.save_every_s else 0
    open_rounds = max(1.0, min(len(model.numels), len(model.numels) * rounds.flight_s / every_s))
    held = fleet.learners * model.largest(settings.codec) * open_rounds
    published = model.encoded(settings.merge.publish_codec)
    cut = values + published + (values if settings.merge.outer_momentum else 0)
    written_s = max(sync.checkpoint_every_s, every_s)
    learners = max((region.learners for region in fleet.regions if region.relay), default=0)
    bundled = 2 * learners * model.largest(settings.codec) if settings.relay.premerge else 0
    return Room(
        learner=values + WORK_VECTORS * values + kept + state,
        kept=kept,
        learner_disk=state + values,
        syncer=cut + held,
        held=held,
        syncer_disk=(settings.checkpoint.keep + 1) * cut,
        disk_bytes_s=cut / written_s,
        relay=float(3 * published + bundled) if learners else 0.0,
    )
