"""The same road on a real device: the bits of the host, and no wait in the training thread."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.tensor.test_device import Play, same
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.device import CudaRoad, road_for
from zdiloco.tensor.layout import layout_of

pytestmark = pytest.mark.gpu

BUSY_CYCLES = 2_000_000  # about a millisecond for which the training stream does nothing else
LONG_CYCLES = 500_000_000


class RealPlay(Play):
    """The script of `Play` on a device whose training stream is always behind."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, None, lambda number: None)
        self.model.cuda()
        self.road = road_for(self.binding)
        assert isinstance(self.road, CudaRoad)

    def train(self, step: int) -> None:
        torch.cuda._sleep(BUSY_CYCLES)
        super().train(step)

    def now(self, work: Callable[[], Any]) -> Any:
        return without_waiting(work)


def without_waiting(work: Callable[[], Any]) -> Any:
    """Whatever in `work` waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        return work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("seed", range(6))
def test_a_real_device_gives_the_bits_of_the_host(seed: int) -> None:
    assert same(RealPlay(seed).run(), Play(seed, None, lambda number: None).run())


def test_snapshot_and_adoption_return_while_the_device_is_still_busy() -> None:
    model = nn.Linear(1000, 1000, device="cuda")
    binding = Binding(model, layout_of(model, num_fragments=1))
    road = road_for(binding)
    road.later_reserve()
    before = binding.gather(0)
    staged = road.later_stage(0, torch.ones(binding.layout.numels[0]))
    stream = torch.cuda.current_stream()
    torch.cuda._sleep(LONG_CYCLES)
    copied = without_waiting(lambda: road.now_copy(0))
    without_waiting(lambda: road.now_add(staged))
    assert not stream.query(), "the device was waited for"
    assert torch.equal(road.later_host(copied), before)
    assert torch.equal(binding.gather(0), before + 1)
