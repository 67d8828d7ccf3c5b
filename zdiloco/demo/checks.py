"""What a demo must show to be called a success: each claim is a pure function of counted figures.

Rule: a check says its figure and its bound in words, whether it holds or not; nothing here reads a file or a clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LOSS_LIMIT = 2.4
"""Validation loss that the merged model must fall below, nats per byte."""
NOISE_BOUND = 2.0
"""Standard deviations of the lone learner's seed noise that the merged model may lie above its mean."""
PAUSE_SHARE = 0.25
"""Part of a median step that 99 of 100 calls of `step()` must stay below."""
PAUSE_PERCENTILE = 99.0
RETURN_S = 15.0
"""Time that a learner which was started again may take until something of it is merged; most is its start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One claim: `name` says what is claimed, `figure` what was found beside its bound.

    `passed` None: this run cannot tell, and `figure` says why; that is no failure.
    """

    name: str
    passed: bool | None
    figure: str


def all_hold(checks: Iterable[Check]) -> bool:
    """Whether every claim holds that this run can tell."""
    return all(check.passed is not False for check in checks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lone:
    """What one learner alone reaches in `steps` inner steps: mean loss and its seed noise (standard deviation).

    `noise_factor` is 1, or 2 where this machine's text is not the text that the curve was measured on.
    """

    steps: int
    loss: float
    noise: float
    noise_factor: float = 1.0

    @property
    def bound(self) -> float:
        """The worst loss that counts as no worse."""
        return self.loss + NOISE_BOUND * self.noise_factor * self.noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Pauses:
    """How one learner process was held up: its median step, the 99th percentile and the longest of its calls [s]."""

    step_s: float
    p99_s: float
    longest_s: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all do not exceed (nearest rank). Raises ValueError for none."""
    if not values:
        raise ValueError("no values have no percentile")
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]


def pauses_of(step_s: Sequence[float], call_s: Sequence[float]) -> Pauses:
    """The pauses of one process from the durations of its steps and of its calls, in seconds."""
    return Pauses(
        step_s=percentile(step_s, 50), p99_s=percentile(call_s, PAUSE_PERCENTILE), longest_s=max(call_s)
    )


def check_loss(loss: float, limit: float = LOSS_LIMIT) -> Check:
    """The merged model has learned: its validation loss is finite and below `limit`."""
    return Check(name="the merged model has learned", passed=loss < limit, figure=f"loss {loss:.3f}, limit {limit:g}")


def check_lone(loss: float, lone: Lone | None, why_none: str = "") -> Check:
    """The merged model is no worse than what the fastest learner would have reached alone in as many steps.

    Not judged without a yardstick (`lone` None); `why_none` says why there is none.
    """
    name = "and is no worse than one learner alone"
    if lone is None:
        return Check(name=name, passed=None, figure=why_none)
    noise = lone.noise_factor * lone.noise
    away = (loss - lone.loss) / noise if noise > 0 else math.copysign(math.inf, loss - lone.loss)
    doubled = "" if lone.noise_factor == 1 else f", noise times {lone.noise_factor:g} for another text"
    figure = (
        f"{loss:.3f}; alone in {lone.steps} steps {lone.loss:.3f} ± {lone.noise:.3f}{doubled}: "
        f"{abs(away):.1f} standard deviations {'above' if away > 0 else 'below'}, bound {NOISE_BOUND:g} above"
    )
    return Check(name=name, passed=loss <= lone.bound, figure=figure)


def check_survivors(merged_tokens: Mapping[str, float], killed: str, *, was_killed: bool = True) -> Check:
    """Every survivor's tokens were merged after the kill. Not judged where the run was over before it.

    `merged_tokens`: per survivor, after that moment, weighed by parameter share.
    """
    name = f"survivors were merged after the kill of {killed}"
    if not was_killed:
        return Check(name=name, passed=None, figure="the run was over before the kill")
    figure = ", ".join(f"{name} {tokens:,.0f}" for name, tokens in sorted(merged_tokens.items())) or "no survivors"
    passed = bool(merged_tokens) and all(tokens > 0 for tokens in merged_tokens.values())
    return Check(name=name, passed=passed, figure=f"tokens merged since: {figure}")


def check_returned(name: str, merged_tokens: float, back_s: float | None) -> Check:
    """The learner that came back was merged again. Not judged where the run left it no time for that.

    `merged_tokens`: of its new incarnation, weighed by parameter share; `back_s`: seconds from its second start to the
    end of the run, None where it was not started again.
    """
    claim = f"{name} was merged after its return"
    if merged_tokens <= 0 and back_s is None:
        return Check(name=claim, passed=None, figure=f"the run was over before {name} was started again")
    if merged_tokens <= 0 and back_s is not None and back_s < RETURN_S:
        why = f"the run was over {back_s:.1f} s after {name} was started again; that may take {RETURN_S:g} s"
        return Check(name=claim, passed=None, figure=why)
    return Check(name=claim, passed=merged_tokens > 0, figure=f"tokens merged: {merged_tokens:,.0f}")


def check_ledger(gaps: Mapping[str, int], differences: Mapping[str, int], trained: float) -> Check:
    """The books balance to the token. `gaps`: trained minus all fates, per process and fragment.

    `differences`: merged tokens by the syncer's checkpoint minus those by its journal, per process and fragment.
    """
    wrong = {place: gap for place, gap in gaps.items() if gap}
    apart = {place: difference for place, difference in differences.items() if difference}
    figure = f"{len(gaps)} accounts, {trained:,.0f} tokens trained, gap {sum(map(abs, gaps.values()))}"
    if wrong:
        figure += f"; worst {max(wrong, key=lambda place: abs(wrong[place]))}"
    if apart:
        figure += f"; journal and checkpoint differ at {', '.join(sorted(apart)[:3])}"
    return Check(name="the ledger balances", passed=bool(gaps) and not wrong and not apart, figure=figure)


def check_pauses(pauses: Mapping[str, Pauses]) -> Check:
    """No learner was held up: 99 of 100 calls of `step()` took less than a quarter of a median step, for each."""
    if not pauses:
        return Check(name="step() holds nobody up", passed=False, figure="no learner has noted a step")
    worst = max(pauses, key=lambda name: pauses[name].p99_s / pauses[name].step_s)
    seen = pauses[worst]
    longest = max(each.longest_s for each in pauses.values())
    return Check(
        name="step() holds nobody up",
        passed=all(each.p99_s < PAUSE_SHARE * each.step_s for each in pauses.values()),
        figure=(
            f"worst is {worst}: p99 {seen.p99_s * 1e3:.1f} ms of a step of {seen.step_s * 1e3:.1f} ms "
            f"({seen.p99_s / seen.step_s:.0%}, bound {PAUSE_SHARE:.0%}); longest call of all {longest * 1e3:.1f} ms"
        ),
    )
