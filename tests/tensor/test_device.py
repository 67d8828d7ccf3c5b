"""The road to a device gives the same bits as host memory, in whatever order streams run, and never stops training.

The devices are of straw (`fake_device.py`); `test_device_gpu.py` does the same on a real one.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tensor.fake_device import DEVICES, FakeDevices
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.device import CpuRoad, CudaRoad, Staged, road_for
from zdiloco.tensor.layout import layout_of
from zdiloco.tensor.streams import SPARES, Pool

STEPS = 40


class Mixed(nn.Module):
    """Strided, empty, 0-dim, bf16 and tied parameters, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.turned = nn.Parameter(torch.randn(3, 5).t())
        self.scalar = nn.Parameter(torch.randn(()))
        self.empty = nn.Parameter(torch.randn(0, 4))
        self.half = nn.Linear(6, 7, dtype=torch.bfloat16)
        self.norm = nn.BatchNorm1d(4)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight


class Play:
    """A training loop and a worker beside it, by a script of chance that is the same for every road."""

    def __init__(self, seed: int, straw: FakeDevices | None, devices: Callable[[int], torch.device | None]) -> None:
        self.script, self.straw = random.Random(seed), straw
        self.model = Mixed()
        self.binding = Binding(self.model, layout_of(self.model, num_fragments=3))
        self.count = len(self.binding.layout.fragments)
        self.devices: dict[int, torch.device] = {}
        if straw:
            tensors = [tensor for index in range(self.count) for tensor in self.binding.live(index)]
            for number, tensor in enumerate(tensors):
                device = devices(number)
                if device is not None and tensor.numel():
                    straw.put(tensor, device)
        self.road = CudaRoad(self.binding, straw) if straw else CpuRoad(self.binding)
        self.jobs: list[Callable[[], None]] = []
        self.staged: dict[int, Staged] = {}
        self.seen: list[Tensor] = []
        self.patient = False  # whether the training thread may wait

    def run(self) -> list[Tensor]:
        """All snapshots as they came to the host, then the values at the end."""
        for step in range(STEPS):
            self.train(step)
            self.boundary()
            for _ in range(self.script.randint(0, 6)):
                if self.jobs:
                    self.jobs.pop(0)()
        while self.jobs:
            self.jobs.pop(0)()
        if self.straw:
            self.straw.drain()
        return [*self.seen, *(self.binding.gather(index) for index in range(self.count))]

    def train(self, step: int) -> None:
        """Every tensor moves by something else in every step."""
        for index in range(self.count):
            for number, tensor in enumerate(self.binding.live(index)):
                self.on_device(tensor, lambda of=tensor, by=0.01 * (step + 1) * (number + 1): add(of, by))

    def on_device(self, tensor: Tensor, work: Callable[[], Any]) -> None:
        device = self.straw.place(tensor) if self.straw else None
        if self.straw is None or device is None:
            work()
        else:
            self.straw.enqueue(self.straw.current(device), work)

    def boundary(self) -> None:
        """Adopt and snapshot, as the training thread does."""
        for fragment in range(self.count):
            what, value = self.script.random(), self.script.random()
            if what < 0.2:
                self.job_for_snapshot(fragment)
            elif what < 0.4:
                self.jobs.append(lambda fragment=fragment, value=value: self.prepare(fragment, value))
            elif what < 0.8 and fragment in self.staged:
                self.adopt(fragment, overwrite=value < 0.2)

    def job_for_snapshot(self, fragment: int) -> None:
        copied = self.now(lambda: self.road.now_copy(fragment))

        def work() -> None:
            host = self.road.later_host(copied)
            self.seen.append(host.clone())
            host.zero_()  # a worker uses it up
            self.road.give_back(fragment, [host])

        self.jobs.append(work)

    def prepare(self, fragment: int, value: float) -> None:
        delta = self.road.vector(fragment)
        delta.copy_(torch.linspace(-value, value, delta.numel()))
        staged = self.road.later_stage(fragment, delta)
        if staged.host is None:
            delta.fill_(float("nan"))  # it is used for something else
            self.road.give_back(fragment, [delta])
        before = self.staged.get(fragment)
        if before:
            self.road.release(before)
        self.staged[fragment] = staged

    def adopt(self, fragment: int, overwrite: bool) -> None:
        staged = self.staged.pop(fragment)
        if overwrite:
            self.now(lambda: self.road.now_load(staged))
        else:
            unused = self.now(lambda: self.road.now_add(staged))
            self.jobs.append(lambda: self.road.give_back(fragment, unused))

    def now(self, work: Callable[[], Any]) -> Any:
        if self.straw is None or self.patient:
            return work()
        with self.straw.training():
            return work()


def add(tensor: Tensor, by: float) -> None:
    with torch.no_grad():
        tensor.add_(by)


def one_device(number: int) -> torch.device:
    return DEVICES[0]


def two_devices_and_the_host(number: int) -> torch.device | None:
    return (*DEVICES, None)[number % 3]


def same(mine: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(mine) == len(theirs) and all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


PLACES = [one_device, two_devices_and_the_host]


@pytest.mark.parametrize("devices", PLACES)
@pytest.mark.parametrize("seed", range(6))
def test_every_order_of_streams_gives_the_bits_of_the_host(seed: int, devices) -> None:
    """Snapshots and values are those of host memory, and the training thread waits for no device."""
    wanted = Play(seed, None, devices).run()
    assert len(wanted) > 15
    assert same(Play(seed, FakeDevices(seed), devices).run(), wanted)


@pytest.mark.parametrize("memory", [0, 1, 2])
@pytest.mark.parametrize("devices", PLACES)
def test_without_memory_on_the_device_values_are_right_all_the_same(devices, memory: int) -> None:
    """Training waits for the bus then, and goes on."""
    for seed in range(2):
        play = Play(seed, FakeDevices(seed, memory=memory), devices)
        play.patient = True
        assert same(play.run(), Play(seed, None, devices).run())


def test_buffers_are_few_and_used_again() -> None:
    """Not one for each fragment, nor for each snapshot."""
    straw = FakeDevices(1)
    play = Play(1, straw, one_device)
    play.road.later_reserve()
    assert straw.made[DEVICES[0]] == 1
    play.run()
    assert straw.made[DEVICES[0]] <= SPARES + play.count
    assert straw.made[None] <= SPARES + play.count
    assert len(play.seen) > 15


@pytest.mark.parametrize("forget", ["wait_event", "synchronize"])
def test_a_wait_that_is_left_out_is_noticed(forget: str) -> None:
    """The straw is good for something: whoever reads before an event, or writes too early, gets other values."""
    wrong = [
        not same(Play(seed, FakeDevices(seed, forget=forget), one_device).run(), Play(seed, None, one_device).run())
        for seed in range(5)
    ]
    assert any(wrong)


def test_a_buffer_used_again_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event that a buffer is given back with is needed."""
    give = Pool.give
    monkeypatch.setattr(Pool, "give", lambda self, vector, last=None: give(self, vector))
    wrong = [
        not same(Play(seed, FakeDevices(seed), one_device).run(), Play(seed, None, one_device).run())
        for seed in range(5)
    ]
    assert any(wrong)


def test_a_tensor_that_moved_since_is_still_changed() -> None:
    """`model.to(device)` between preparing and adopting."""
    straw = FakeDevices()
    play = Play(0, straw, one_device)
    before = play.binding.gather(0)
    play.prepare(0, 1.0)
    straw._homes.clear()
    play.road.now_add(play.staged[0])
    straw.drain()
    coarse = torch.linspace(-1.0, 1.0, before.numel())
    assert torch.allclose(play.binding.gather(0), before + coarse, atol=0.02)


def test_a_model_on_the_host_takes_the_plain_road() -> None:
    """And so costs no pinned memory."""
    model = Mixed()
    assert type(road_for(Binding(model, layout_of(model, num_fragments=2)))) is CpuRoad
