"""What a newcomer's first steps cost the run, by what its inner optimizer starts with."""

import statistics
from collections.abc import Callable

import pytest
import torch

from tests.train.joining import FIRST, STEPS, Rejoining, Result, Variant

VARIANTS = tuple(
    Variant(state=state, warmup_steps=warmup)
    for state, warmup in (("cold", 20), ("peer", 20), ("own", 20), ("peer", 0), ("cold", 0))
)  # fmt: skip
SEEDS = (0, 1, 2)


def table(found: dict[Variant, list[Result]]) -> list[str]:
    """One line per variant: means over the seeds, and of the differences to a cold start with the usual warm-up."""
    base = found[Variant(state="cold", warmup_steps=20)]
    lines = []
    for variant, results in found.items():
        cells = []
        for name in ("first", "all", "run", "run_end"):
            values = [getattr(result, name) for result in results]
            gains = [getattr(result, name) - getattr(cold, name) for result, cold in zip(results, base, strict=True)]
            spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
            cells.append(f"{statistics.fmean(values):.4f} ({statistics.fmean(gains):+.4f} ±{spread:.4f})")
        lines.append(f"  {variant.state:9s} {variant.warmup_steps:3d}  " + "  ".join(cells))
    return lines


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_a_peer_s_state_is_no_worse_than_a_cold_start(beta2: float, say: Callable[[str], None]) -> None:
    """Figures are differences to a cold start with 20 steps of warm-up, of the same seed."""
    torch.set_num_threads(1)
    found: dict[Variant, list[Result]] = {variant: [] for variant in VARIANTS}
    for seed in SEEDS:
        fleet = Rejoining(seed, beta2)
        for variant in VARIANTS:
            found[variant].append(fleet.play(variant))
    say(f"beta2 {beta2:g}, {len(SEEDS)} seeds: state, warm-up; the newcomer's training loss over {FIRST} and {STEPS}")
    say("steps; validation loss of the run in the 100 steps after, and at their end (difference to cold, 20):")
    for line in table(found):
        say(line)
    mean = {variant: statistics.fmean(result.all for result in results) for variant, results in found.items()}
    assert mean[Variant(state="peer", warmup_steps=20)] < mean[Variant(state="cold", warmup_steps=20)] + 0.01
