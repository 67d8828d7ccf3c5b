"""The adaptive grace window: how long a round that has its quorum waits for more (paper section 3.2; docs/math.md).

Rule: all times are the syncer's own, on one monotonic clock; averages are exponential. While one is missing there is
no slack.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zdiloco.core.params import SyncParams


class Average:
    """An exponential moving average in seconds; None until the first sample."""

    __slots__ = ("share", "value")

    def __init__(self, share: float) -> None:
        self.share = share
        self.value: float | None = None

    def add(self, sample: float) -> None:
        """Take one more sample; the first one is taken whole."""
        self.value = sample if self.value is None else self.value + self.share * (sample - self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraceInputs:
    """What the window depends on, in seconds.

    `step_s`: of the fastest live learner. `waiting_steps_s`: one step of each live learner neither in, held nor
    declined (the slowest alone is enough). `answers_s`: average time from call to complete arrival, per live learner
    that has ever answered (their 90th percentile alone is enough). `least_share`: of the slack, that the window has at
    least (`adaptive_grace.py`).
    """

    called_at: float
    quorum_at: float
    step_s: float | None
    quorum_s: float | None
    sync_s: float | None
    waiting_steps_s: Sequence[float]
    answers_s: Sequence[float]
    least_share: float = 0.0


def grace_ends(inputs: GraceInputs, params: SyncParams) -> tuple[float, str]:
    """The moment at which the window closes, and why then.

    At least one step of the slowest learner that is waited for (they answer at step boundaries), and at least
    `least_share` of the slack; beyond that the smaller of gamma * slack and the time at which nine learners in ten have
    usually answered.
    slack = H * step - quorum - sync (seconds): what is left until the fragment is due again, since learners never wait.
    """
    if params.grace == "off":
        return inputs.quorum_at, "no grace window (grace = off)"
    floor = max(inputs.waiting_steps_s, default=0.0)
    slack = slack_s(inputs.step_s, inputs.quorum_s, inputs.sync_s, params.sync_period)
    usual = inputs.called_at + p90(inputs.answers_s) - inputs.quorum_at if inputs.answers_s else 0.0
    learned = inputs.least_share * max(slack, 0.0)
    window = max(floor, learned, min(params.gamma * max(slack, 0.0), usual))
    parts = f"slack {slack:.3f} s, usual answer {usual:.3f} s after quorum, step {floor:.3f} s"
    parts += f", learned {learned:.3f} s" if learned else ""
    why = f"grace window {window:.3f} s ({parts})"
    return inputs.quorum_at + window, why


def slack_s(step_s: float | None, quorum_s: float | None, sync_s: float | None, sync_period: int) -> float:
    """Seconds that are left until a fragment is due again; 0 while an average is missing, and below 0 if none are."""
    if step_s is None or quorum_s is None or sync_s is None:
        return 0.0
    return sync_period * step_s - quorum_s - sync_s


def p90(values: Sequence[float]) -> float:
    """The nearest-rank 90th percentile of at least one value."""
    return p90_of_ordered(sorted(values))


def p90_of_ordered(values: Sequence[float]) -> float:
    """The same of values in ascending order."""
    return values[max(0, -(-9 * len(values) // 10) - 1)]
