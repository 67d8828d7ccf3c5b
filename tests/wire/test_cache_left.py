"""What a relay keeps, when readers are half-way and it must go, and when the broadcast is left."""

from collections import Counter

import pytest

from tests.wire.test_cache import IDLE_S, Source, credit, give, kept, params
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.cache import UPSTREAM, Cache
from zdiloco.wire.inbox import Inbox
from zdiloco.wire.outbox import ChunkOut
from zdiloco.wire.transfer import Credit


@pytest.fixture
def source() -> Source:
    return Source()


class Readers:
    """Two receivers of whole states behind one cache; what it has no answer to goes up. `crossed`: chunks, by state."""

    def __init__(self, source: Source, cache: Cache) -> None:
        self.source, self.cache = source, cache
        self.inboxes = {name: Inbox(params()) for name in "ab"}
        self.states = {name: source.update(place, 7, full=True, chunks=20) for place, name in enumerate("ab")}
        self.crossed, self.twice = Counter[str](), 0

    def pull(self, name: str, now: float) -> None:
        """One is offered its state."""
        self.cache.announce(self.states[name], now)
        self.inboxes[name].expect("relay", self.states[name].body, now)

    def turn(self, name: str, now: float) -> None:
        """One asks for more, and all that is asked for comes."""
        for _, message in self.inboxes[name].turn(now).to_send:
            assert isinstance(message, Credit)
            here = self.cache.on_credit(name, message, now)
            self._give(self._fetched(name, message) if here is None else here, now)
        for _ in range(2):
            for message in self.cache.turn(now).upstream:
                assert isinstance(message, Credit)
                for chunk in self._fetched(UPSTREAM, message):
                    self._give(self.cache.on_chunk(chunk.header, chunk.view, now), now)

    def _fetched(self, peer: str, message: Credit) -> list[ChunkOut]:
        chunks = self.source.box.on_credit(peer, message)
        assert isinstance(chunks, list)
        self.crossed[message.transfer] += len(chunks)
        return chunks

    def _give(self, chunks: list[ChunkOut], now: float) -> None:
        for chunk in chunks:
            outcome = self.inboxes[str(chunk.peer)].on_chunk("relay", chunk.header, chunk.view, now)
            self.twice += outcome is Outcome.DUPLICATE


def test_a_state_that_is_put_out_half_read_goes_on_where_it_was(source: Source) -> None:
    """The cache holds one of two states: both are read to their ends, and what was read before does not cross again."""
    cache = Cache(params(chunks=22), IDLE_S)
    there = Readers(source, cache)
    first, second = (there.states[name].body.transfer for name in "ab")
    there.pull("a", 0.0)
    there.turn("a", 0.1)
    there.turn("a", 0.2)
    assembly = there.inboxes["a"].assembly("relay", first)
    assert assembly is not None
    read = assembly.count - sum(count for _, count in assembly.missing(0, assembly.count))
    assert 8 <= read < 20
    there.pull("b", 0.3)
    assert first not in cache
    for turn in range(20):
        there.turn("ab"[turn % 2], 0.4 + turn / 10)
    for name in "ab":
        state = there.states[name].body.transfer
        assert bytes(there.inboxes[name].take("relay", state)) == source.bytes[state]
    assert there.twice == 0
    assert there.crossed[second] == 20
    assert there.crossed[first] <= 40 - read, "what the cache had of it, and what was not read of that"


def test_a_broadcast_that_is_left_is_not_repaired(source: Source) -> None:
    """What is whole stays, and so does a whole state that is being fetched; nothing else is asked for upstream."""
    cache = Cache(params(), IDLE_S)
    whole, coming, state = source.update(0, 1), source.update(0, 2), source.update(1, 2, full=True)
    kept(source, cache, whole)
    cache.announce(coming, 0.0)
    cache.announce(state, 0.0)
    give(cache, source.chunks(coming)[:2])
    give(cache, source.chunks(source.update(2, 9)))
    assert cache.early.chunks == 4
    cache.on_credit("a", credit(coming, (3, 1)), 0.1)
    cache.tuned(listening=False)
    assert [update.body.transfer in cache for update in (whole, coming, state)] == [True, False, True]
    assert cache.early.chunks == 0
    turn = cache.turn(0.2)
    assert [(peer, gone.transfer) for peer, gone in turn.gone] == [("a", coming.body.transfer)]
    assert {message.transfer for message in turn.upstream} == {state.body.transfer}
