"""Stripes: chunks that overtake each other are not lost ones, and a dead stripe holds little up (limits: rule 8)."""

import random
from collections import OrderedDict

import pytest

from tests.wire.test_link import CHUNK, PARAMS, SIZES, Link, Peer, World
from zdiloco.wire.encoding import decode, encode
from zdiloco.wire.outbox import ChunkOut
from zdiloco.wire.stripes import MOST_TRANSFERS, REST, Stripes
from zdiloco.wire.transfer import Credit

ROOM = 2
"""Chunks that a stripe takes before it is full."""
SWALLOWS = 20
"""Chunks that a dead stripe takes before it is full: as a connection does that has large buffers."""


class Striped(World):
    """One peer whose chunks go up on several stripes, each at a rate of its own (bytes per second; 0: it is dead)."""

    def __init__(self, seed: int, rates: list[float], sizes: list[int]) -> None:
        super().__init__(seed, Link(), PARAMS, {"m0": sizes})
        self.rates = rates
        self.stripes = Stripes(len(rates))
        self.inside = [0] * len(rates)
        self.free_at = [0.0] * len(rates)
        self.waiting: OrderedDict[tuple[str, int], ChunkOut] = OrderedDict()

    def send_chunks(self, peer: Peer, chunks: list[ChunkOut]) -> None:
        for chunk in chunks:
            place = (chunk.transfer, chunk.index)
            self.stripes.wake() if place in self.waiting else self.stripes.asked_again(*place)
            self.waiting[place] = chunk
        self.pump()

    def pump(self) -> None:
        while self.waiting and (free := [s for s in self.stripes.turns() if self.has_room(s)]):
            (transfer, index), chunk = self.waiting.popitem(last=False)
            self.stripes.carries(free[0], transfer, index)
            self.inside[free[0]] += 1
            rate = self.rates[free[0]]
            if rate:
                self.free_at[free[0]] = max(self.free_at[free[0]], self.now) + chunk.view.nbytes / rate
                self.post(self.free_at[free[0]], ("left", free[0]))
                frames = ("chunk", "m0", encode(chunk.header), bytes(chunk.view))
                self.post(self.free_at[free[0]] + self.link.delay_s, frames)

    def has_room(self, stripe: int) -> bool:
        return self.inside[stripe] < (ROOM if self.rates[stripe] else SWALLOWS)

    def handle(self, epoch: int, event: tuple[object, ...]) -> None:
        match event:
            case ("left", int(stripe)):
                self.inside[stripe] -= 1
                self.pump()
                return
            case ("credit", str(name), bytes(header)):
                message = decode(header)
                if isinstance(message, Credit) and self.peers[name].outbox.is_through(message):
                    self.stripes.arrived(message.transfer)
            case ("die", int(stripe)):
                self.rates[stripe] = 0.0
                self.events = [each for each in self.events if each[3] != ("left", stripe)]  # the order stays a heap's
                self.events.sort()
                return
        super().handle(epoch, event)


@pytest.mark.parametrize("rates", [[1e5] * 4, [1e4] * 3, [2e6] * 2, [1e5, 5e4, 1e5, 5e4], [4e4, 3e4], [1e5]])
def test_chunks_that_overtake_each_other_are_not_lost(rates: list[float]) -> None:
    for seed in range(5):
        world = Striped(seed, list(rates), [*SIZES["m0"], 1, *SIZES["m1"], 60_000])
        world.run()
        assert world.arrived == world.payloads
        assert world.totals() == (sum(map(len, world.payloads.values())), 0), (seed, "asked for again")


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("at", [0.0, 0.31, 2.0])
def test_a_stripe_that_dies_costs_what_is_in_it_and_some_seconds(count: int, at: float) -> None:
    """Its connection stands and takes chunks; nobody says that they do not arrive."""
    sizes, rate = [50_000] * 8, 1e5
    without = Striped(7, [rate] * (count - 1), sizes).run().now
    world = Striped(7, [rate] * count, sizes)
    world.post(at, ("die", 1))
    world.run()
    assert world.arrived == world.payloads
    assert not world.given_up
    _, resent = world.totals()
    assert 0 < resent <= SWALLOWS * CHUNK, "what it swallowed"
    assert world.now < without + 12 * PARAMS.stall_s


def test_stripes_take_turns_and_those_that_rest_are_passed_over() -> None:
    stripes = Stripes(3)
    taken = []
    for index in range(6):
        taken.append(next(stripes.turns()))
        stripes.carries(taken[-1], "t", index)
    assert taken == [0, 1, 2, 0, 1, 2]
    stripes.asked_again("t", 1)
    stripes.asked_again("t", 4)  # of the same stripe, at the same time: it rests once
    assert list(stripes.turns()) == [0, 2]
    for index in range(REST):
        assert 1 not in stripes.turns()
        stripes.carries(next(stripes.turns()), "u", index)
    assert 1 in stripes.turns()


def test_a_stripe_in_vain_rests_twice_as_long_until_something_arrives() -> None:
    def rest(stripes: Stripes) -> int:
        stripes.carries(1, "v", 0)
        stripes.asked_again("v", 0)
        count = 0
        while 1 not in stripes.turns():
            stripes.carries(0, "w", count)
            count += 1
        return count

    stripes = Stripes(2)
    assert [rest(stripes) for _ in range(3)] == [REST, 2 * REST, 4 * REST]
    stripes.carries(1, "x", 0)
    assert list(stripes.turns()) == [0], "one chunk alone shows whether it is sound"
    stripes.arrived("x")
    assert sorted(stripes.turns()) == [0, 1]
    assert rest(stripes) == REST


def test_if_all_rest_or_what_waits_is_asked_for_all_are_tried() -> None:
    stripes = Stripes(2)
    for stripe in range(2):
        stripes.carries(stripe, "t", stripe)
    stripes.asked_again("t", 0)
    assert list(stripes.turns()) == [1]
    stripes.asked_again("t", 1)
    assert sorted(stripes.turns()) == [0, 1]
    stripes.carries(0, "t", 5)
    stripes.wake()
    assert sorted(stripes.turns()) == [0, 1]


def test_what_is_remembered_of_transfers_is_bounded() -> None:
    stripes, rng = Stripes(4), random.Random(3)
    for number in range(3 * MOST_TRANSFERS):
        stripes.carries(rng.randrange(4), f"t{number}", 0)
    assert len(stripes._carried) == MOST_TRANSFERS
    stripes.forget(f"t{number}")
    assert len(stripes._carried) == MOST_TRANSFERS - 1
