"""The knobs of both machines: one frozen value each, every field with its unit, its meaning and its bounds.

Rule: a default is what the project's own measurements support; what is only for study says so.
"""

from dataclasses import dataclass

from zdiloco.errors import ConfigError
from zdiloco.knobs import check_choices, check_knobs, check_name, knob

MOST_PERIOD = 1_000_000
"""The longest H, set or adapted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncParams:
    """When the syncer calls, waits, merges and saves."""

    min_quorum: int = knob(1, "K: contributions without which a round may not close", "learners")
    sync_period: int = knob(24, "H: inner steps between two contributions of the same fragment", "steps")
    num_fragments: int = knob(0, "P: fragments the model is cut into; 0: 24, or one per tensor if there are fewer")
    grace: str = knob("adaptive", "'adaptive': wait for more after the quorum while time is to spare; 'off': for study")
    gamma: float = knob(0.5, "share of the slack that the grace window may use")
    adaptive: bool = knob(False, "H, K and grace follow measured links, speeds and participation")
    adaptive_period_max: int = knob(0, "with adaptive: the highest H; 0: eight times sync_period", "steps")
    adaptive_quorum_max: int = knob(0, "with adaptive: the highest K; 0: as many as take part", "learners")
    adaptive_grace_max: float = knob(0.0, "with adaptive: share of the slack that grace may have at most; 0: 0.9")
    average: float = knob(0.125, "weight of the newest sample in every moving average")
    park_after_s: float = knob(30.0, "a round without quorum for so long frees its slot and waits on", "s")
    on_lost_quorum: str = knob("wait", "fewer live learners than K: 'wait' for them, or 'degrade' K to those live")
    weight: str = knob("tokens2_per_step", "weight of a contribution: 'tokens2_per_step', 'tokens' or 'uniform'")
    clip: float = knob(3.0, "a contribution is scaled down to so many times the norm of what others send; 0: never")
    max_step_tokens: int = knob(2**31, "most tokens that one inner step can have; more is refused", "tokens")
    report_every_s: float = knob(0.1, "a learner reports its step at most so often", "s")
    beat_every_s: float = knob(1.0, "how often syncer and learners say that they live", "s")
    suspect_after_s: float = knob(3.0, "a learner silent for so long is not waited for", "s")
    gone_after_s: float = knob(6.0, "a learner silent for so long does not count any more", "s")
    recover_wait_s: float = knob(5.0, "a syncer that starts again waits so long for what the fleet may hold", "s")
    drain_s: float = knob(20.0, "at the end of a run, open rounds and whoever does not come on are waited for", "s")
    when_alone: str = knob("wait", "when every learner has left: 'wait' for others, or 'stop' with a last checkpoint")
    checkpoint_every_s: float = knob(10.0, "time between two checkpoints of the syncer", "s")
    budget_bytes: int = knob(2**30, "memory for contributions under way or held", "bytes")
    loan_bytes: int = knob(2**29, "memory for inner state on its way to a newcomer; 0: it starts cold", "bytes")

    def __post_init__(self) -> None:
        many, seconds = (1, 1_000_000), (0.001, 1e7)
        check_knobs(self, "sync", min_quorum=many, sync_period=(1, MOST_PERIOD), num_fragments=(0, 511), gamma=(0, 1))
        check_knobs(self, "sync", average=(0.001, 1), max_step_tokens=(1, 2**53), budget_bytes=(2**16, 2**50))
        check_knobs(self, "sync", loan_bytes=(0, 2**50))
        check_knobs(self, "sync", park_after_s=seconds, report_every_s=(0, 3600), beat_every_s=seconds)
        check_knobs(self, "sync", suspect_after_s=seconds, gone_after_s=seconds, drain_s=seconds)
        check_knobs(self, "sync", recover_wait_s=(0, 1e7), checkpoint_every_s=seconds)
        check_knobs(self, "sync", adaptive_period_max=(0, MOST_PERIOD), adaptive_quorum_max=(0, 1_000_000))
        check_knobs(self, "sync", adaptive_grace_max=(0, 1))
        starts = {"period_max": self.sync_period, "quorum_max": self.min_quorum, "grace_max": self.gamma}
        for key, least in starts.items():
            if 0 < getattr(self, f"adaptive_{key}") < least:
                raise ConfigError(f"sync.adaptive_{key} is below {least:g}, where it starts: raise it, or set it to 0")
        if self.clip:
            check_knobs(self, "sync", clip=(1, 1e6))
        check_choices(self, "sync", grace=("adaptive", "off"), on_lost_quorum=("wait", "degrade"))
        check_choices(self, "sync", when_alone=("wait", "stop"))
        check_choices(self, "sync", weight=("tokens2_per_step", "tokens", "uniform"))
        if not self.beat_every_s < self.suspect_after_s <= self.gone_after_s:
            raise ConfigError(
                f"sync.beat_every_s {self.beat_every_s:g} < suspect_after_s {self.suspect_after_s:g} <= gone_after_s "
                f"{self.gone_after_s:g} must hold"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerParams:
    """How a learner contributes and adopts."""

    codec: str = knob("bf16", "of contributions: 'fp32', 'bf16', 'int8', '4bit', or 'auto': by the measured link")
    adopt: str = knob("carry", "'carry' keeps unmerged work; 'overwrite' (as published) loses it; 'blend': for study")
    blend: float = knob(0.5, "alpha: with adopt = 'blend', the share of the unmerged work that is kept")
    strategy: str = knob("balanced", "how tensors are dealt to fragments: 'balanced', 'strided' or 'layer'")
    kept_max_bytes: int = knob(2**32, "merged bytes kept until stable; above it nothing more is contributed", "bytes")
    max_unmerged_steps: int = knob(0, "unmerged work of a fragment above so many steps is dropped; 0: never", "steps")
    answer_timeout_s: float = knob(5.0, "a question without an answer for so long is asked again", "s")
    silent_after_s: float = knob(6.0, "without a beat for so long the syncer counts as away", "s")
    save_every_s: float = knob(60.0, "time between two saves of inner optimizer, data and random state; 0: never", "s")
    warm_start: str = knob("own", "inner state at the start: 'own' saved one; 'peer': else a live learner's; 'none'")
    give_up_after_s: float = knob(21600.0, "without any syncer for so long a learner ends, code 3; 0: never", "s")
    max_uplink: int = knob(32, "most contributions under way at once", "contributions")
    region: str = knob("", "where this learner is, for status, journal and charts; differs from machine to machine")

    def __post_init__(self) -> None:
        check_knobs(self, "learner", blend=(0, 1), kept_max_bytes=(0, 2**60), max_unmerged_steps=(0, 2**53))
        check_knobs(self, "learner", give_up_after_s=(0, 1e9))
        check_knobs(self, "learner", answer_timeout_s=(0.01, 1e6), silent_after_s=(0.01, 1e6), max_uplink=(1, 4096))
        check_choices(self, "learner", adopt=("carry", "overwrite", "blend"))
        check_choices(self, "learner", codec=("fp32", "bf16", "int8", "4bit", "auto"))
        check_choices(self, "learner", strategy=("balanced", "strided", "layer"), warm_start=("own", "peer", "none"))
        check_knobs(self, "learner", save_every_s=(0, 1e6))
        if self.region:
            check_name(self.region, "learner.region")
