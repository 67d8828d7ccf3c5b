"""The demo's task with 4 bits both ways is as good where two regions merge their contributions before they cross.

As `test_quality_of_codecs.py`: no clock, and two runs of one seed differ by what crosses alone.
"""

import statistics
from collections.abc import Callable

import pytest

from tests.accept.test_quality_of_codecs import FLAT, SMALL, Fleet
from zdiloco.core.machine import Part
from zdiloco.node.syncer_body import Payload
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.merge import Weighted
from zdiloco.tensor.partial import bundle_of
from zdiloco.units import ContributionId

pytestmark = pytest.mark.usefixtures("one_thread")


class Regions(Fleet):
    """The same fleet; its first and its second half are behind a relay each, which merges in `bundle_codec`."""

    bundle_codec = "fp32"

    def crossed(
        self, fragment: int, parts: list[Part], payloads: list[Payload]
    ) -> tuple[list[Part], list[Payload]]:
        half, whole = len(parts) // 2, self.layout.fragments[fragment]
        crossed: tuple[list[Part], list[Payload]] = ([], [])
        for number, members in enumerate((slice(0, half), slice(half, None)), 1):
            weighted = [
                Weighted(data=payload.data, codec=get_codec(part.codec), weight=part.weight, squares=payload.squares)
                for part, payload in zip(parts[members], payloads[members], strict=True)
            ]
            data = bundle_of(whole, weighted, "rda", self.bundle_codec)
            if data is None:
                crossed[0].extend(parts[members])
                crossed[1].extend(payloads[members])
                continue
            payload = Payload(memoryview(data), "b", method="rda")
            assert self.syncer.screen(fragment, self.bundle_codec, payload)[0] == ""
            id_ = ContributionId("relay", number, fragment, -1)
            weight = sum(part.weight for part in parts[members])
            crossed[0].append(Part(id=id_, codec=self.bundle_codec, weight=weight))
            crossed[1].append(payload)
        return crossed


class RoundedRegions(Regions):
    """The same, with bundles in bf16."""

    bundle_codec = "bf16"


def table(seeds: range, learners: int, steps: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Losses by what crosses, in the order of the seeds."""
    names = ("bf16 flat", "4bit flat", "4bit, fp32 bundles", "4bit, bf16 bundles")
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in seeds:
        fleets = (Fleet(seed, learners, FLAT), Fleet(seed, learners, SMALL), Regions(seed, learners, SMALL),
                  RoundedRegions(seed, learners, SMALL))  # fmt: skip
        for losses, fleet in zip(found.values(), fleets, strict=True):
            losses.append(fleet.run(steps))
        row = ", ".join(f"{name} {losses[-1]:.4f}" for name, losses in found.items())
        say(f"seed {seed}, {learners} learners in two regions, {steps} steps: {row} nats/byte")
    return found


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_regions_merged_first_are_within_the_noise_of_seeds(say: Callable[[str], None]) -> None:
    found = table(range(3), 4, 300, say)
    noise, flat = statistics.stdev(found["bf16 flat"]), statistics.fmean(found["bf16 flat"])
    for name, losses in found.items():
        lost = statistics.fmean(losses) - flat
        say(f"{name}: {lost:+.4f} to bf16 flat, stdev of seeds {noise:.4f}")
        assert lost <= noise, name
