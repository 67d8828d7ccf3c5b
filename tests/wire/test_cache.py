"""What a relay keeps: who is served from it, with what, and what goes when there is no room."""

import random
from dataclasses import replace

import pytest

from zdiloco.core.messages import Body, Update
from zdiloco.units import Epoch, Stamp
from zdiloco.wire.cache import KEEP, MOST_AWAITED, MOST_REPLACED, UPSTREAM, Cache
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Inbox
from zdiloco.wire.outbox import ChunkOut, Outbox
from zdiloco.wire.transfer import Chunk, Credit, Gone

CHUNK = 1024
IDLE_S = 4.0


def params(chunks: int = 100) -> InboxParams:
    return InboxParams(budget_bytes=chunks * CHUNK, window_bytes=8 * CHUNK, stall_s=2.0, give_up_s=30.0)


class Source:
    """What is upstream: it makes updates, and says what a credit of the cache brings."""

    def __init__(self) -> None:
        self.box = Outbox()
        self.bytes: dict[str, bytes] = {}

    def update(self, fragment: int, version: int, *, full: bool = False, chunks: float = 4, epoch: int = 1) -> Update:
        name = f"{'full' if full else 'update'}/{fragment}/{epoch}/{version}"
        rng = random.Random(name)
        self.bytes[name] = rng.randbytes(int(chunks * CHUNK))
        body = self.box.add(name, self.bytes[name], CHUNK)
        return Update(
            fragment=fragment, stamp=Stamp(Epoch(epoch, 1), version), full=full, codec="bf16", value_bytes=1, body=body
        )

    def chunks(self, update: Update) -> list[ChunkOut]:
        return self.box.broadcast(update.body.transfer)


def give(cache: Cache, chunks: list[ChunkOut], now: float = 0.0, *, early: bool = True) -> list[ChunkOut]:
    return [out for each in chunks for out in cache.on_chunk(each.header, each.view, now, early=early)]


def credit(update: Update, *missing: tuple[int, int], upto: int | None = None, received: int = 0) -> Credit:
    upto = (0 if missing else update.body.nbytes) if upto is None else upto
    return Credit(transfer=update.body.transfer, upto=upto, received=received, missing=missing)


def served(cache: Cache, update: Update, now: float = 0.0) -> bytes | None:
    """What a newcomer gets of an update, if it is here and whole."""
    chunks = cache.on_credit(object(), credit(update), now)
    return None if chunks is None else b"".join(bytes(chunk.view) for chunk in chunks)


@pytest.fixture
def source() -> Source:
    return Source()


def kept(source: Source, cache: Cache, *updates: Update, now: float = 0.0) -> list[bool]:
    """Announce each with all its chunks; say which of them are there at the end."""
    for update in updates:
        give(cache, [], now)
        cache.announce(update, now)
        give(cache, source.chunks(update), now)
    return [update.body.transfer in cache for update in updates]


def test_a_gap_is_filled_from_here_without_a_word_upstream(source: Source) -> None:
    cache, update = Cache(params(), IDLE_S), source.update(0, 1)
    assert kept(source, cache, update) == [True]
    chunks = cache.on_credit("a", credit(update, (1, 2)), 1.0)
    assert chunks is not None
    assert [(chunk.peer, chunk.index, chunk.checksum) for chunk in chunks] == [
        ("a", each.index, each.checksum) for each in source.chunks(update)[1:3]
    ]
    assert b"".join(bytes(chunk.view) for chunk in chunks) == source.bytes[update.body.transfer][CHUNK : 3 * CHUNK]
    assert cache.turn(100.0).upstream == []


def test_what_is_not_here_is_for_others_to_answer(source: Source) -> None:
    cache, update = Cache(params(), IDLE_S), source.update(0, 1)
    assert cache.on_credit("a", credit(update), 0.0) is None
    assert not cache.on_gone("a", Gone(transfer=update.body.transfer, by_sender=False, reason=""))
    assert cache.on_credit("a", Credit(transfer="c/0/1", upto=9, received=0), 0.0) is None


def test_a_gap_of_its_own_is_asked_for_and_goes_to_who_waits(source: Source) -> None:
    """Whoever asked before it came gets it when it comes; nobody gets it twice, and nobody else gets it."""
    cache, update = Cache(params(), IDLE_S), source.update(0, 1)
    first, hole, *rest = source.chunks(update)
    assert cache.announce(update, 0.0) == []
    assert give(cache, [first]) == []
    for peer in ("a", "b", "a"):
        assert cache.on_credit(peer, credit(update, (1, 1)), 0.1) == []
    assert give(cache, rest) == []
    [(asked)] = cache.turn(0.2).upstream
    assert isinstance(asked, Credit)
    assert (asked.upto, asked.missing) == (0, ((1, 1),)), "it is asked for as soon as the last one is here"
    out = cache.on_chunk(hole.header, hole.view, 0.3)
    assert sorted((chunk.peer, chunk.index) for chunk in out) == [("a", 1), ("b", 1)]
    assert all(bytes(chunk.view) == bytes(hole.view) for chunk in out)
    assert cache.on_chunk(hole.header, hole.view, 0.4) == []
    assert served(cache, update) == source.bytes[update.body.transfer]


def test_a_whole_state_is_fetched_once_for_all_who_ask(source: Source) -> None:
    """Cut through: what is granted and not here goes out chunk by chunk as it comes."""
    cache, update = Cache(params(), IDLE_S), source.update(0, 7, full=True, chunks=20)
    cache.announce(update, 0.0)
    assert cache.announce(update, 0.0) == [], "the second who pulls is told of the same body"
    receivers = {name: Inbox(params()) for name in ("a", "b", "c")}
    for inbox in receivers.values():
        inbox.expect("relay", update.body, 0.0)
    fetched = 0
    for turn in range(100):
        now = turn / 10
        out = []
        for name, inbox in receivers.items():
            for _, message in inbox.turn(now).to_send:
                assert isinstance(message, Credit)
                out += cache.on_credit(name, message, now) or []
        for message in cache.turn(now).upstream:
            assert isinstance(message, Credit)
            for chunk in source.box.on_credit(UPSTREAM, message):
                assert isinstance(chunk, ChunkOut)
                fetched += 1
                out += cache.on_chunk(chunk.header, chunk.view, now)
        for chunk in out:
            receivers[str(chunk.peer)].on_chunk("relay", chunk.header, chunk.view, now)
    name = update.body.transfer
    assert fetched == 20
    assert [bytes(inbox.take("relay", name)) for inbox in receivers.values()] == [source.bytes[name]] * 3
    assert all(inbox.counters.asked_again == 0 for inbox in receivers.values())


def test_an_update_that_is_not_taken_is_fetched_once_by_whoever_asks_first(source: Source) -> None:
    """The far link carries no broadcast: what two learners ask for by credit crosses once; what nobody wants, never."""
    cache, wanted, other = Cache(params(), IDLE_S), source.update(0, 1), source.update(1, 1)
    for update in (wanted, other):
        assert cache.announce(update, 0.0, comes=False) == []
    assert cache.turn(0.0).upstream == []
    assert cache.on_credit("a", credit(wanted), 0.0) == []
    asked = [word for word in cache.turn(0.0).upstream if isinstance(word, Credit)]
    assert [word.transfer for word in asked] == [wanted.body.transfer]
    assert cache.on_credit("b", credit(wanted), 0.1) == []
    assert cache.turn(0.1).upstream == []
    out = give(cache, source.chunks(wanted), 0.2, early=False)
    assert sorted((chunk.peer, chunk.index) for chunk in out) == [(peer, index) for peer in "ab" for index in range(4)]
    assert other.body.transfer not in cache


def test_chunks_before_their_announcement_are_not_fetched_again(source: Source) -> None:
    cache, update = Cache(params(), IDLE_S), source.update(0, 1)
    assert give(cache, source.chunks(update)) == []
    assert update.body.transfer not in cache
    cache.announce(update, 0.0)
    assert cache.turn(50.0).upstream == []
    assert served(cache, update) == source.bytes[update.body.transfer]


@pytest.mark.parametrize("full", [False, True])
def test_the_newest_states_stay_and_older_ones_only_while_they_are_fetched(source: Source, full: bool) -> None:
    cache, keep = Cache(params(), IDLE_S), KEEP[full]
    updates = [source.update(0, version, full=full) for version in range(keep + 2)]
    assert kept(source, cache, *updates[:-1]) == [True] * (keep + 1), "the oldest was announced a moment ago"
    cache.on_credit("slow", credit(updates[0], (0, 1)), 10.0)
    cache.announce(updates[-1], 10.0)
    assert [update.body.transfer in cache for update in updates] == [True, False] + [True] * keep
    cache.announce(source.update(0, 99, full=full), 10.1 + IDLE_S)
    assert updates[0].body.transfer not in cache
    gone = updates[:3]  # with the last one that has come now, the newest ones are left
    assert sorted(cache.dropped) == sorted(update.body.transfer for update in gone)


def test_however_many_are_fetched_few_replaced_ones_stay(source: Source) -> None:
    cache = Cache(params(), IDLE_S)
    updates = [source.update(0, version) for version in range(20)]
    for update in updates:
        kept(source, cache, update)
        for older in updates:
            cache.on_credit("slow", credit(older, (0, 1)), 0.0)
    assert len(cache) == KEEP[False] + MOST_REPLACED
    assert all(update.body.transfer in cache for update in updates[-len(cache) :])


def test_older_states_of_any_fragment_make_room_before_newest_ones(source: Source) -> None:
    cache = Cache(params(chunks=16), IDLE_S)
    old = [source.update(fragment, 1) for fragment in range(2)]
    new = [source.update(fragment, 2) for fragment in range(2)]
    assert kept(source, cache, *old, *new) == [True] * 4
    assert cache.nbytes == 16 * CHUNK
    served(cache, old[0], 1.0)  # asked for later than the other
    third = source.update(2, 1)
    kept(source, cache, third, now=2.0)
    assert [update.body.transfer in cache for update in (*old, *new, third)] == [True, False, True, True, True]
    fourth = source.update(3, 1)
    kept(source, cache, fourth, now=2.0)
    assert [update.body.transfer in cache for update in (*old, *new, third, fourth)] == [False, False] + [True] * 4
    assert cache.counters.evicted == 2


def test_what_somebody_waits_for_is_never_put_out_and_the_new_one_is_passed_over(source: Source) -> None:
    cache, coming = Cache(params(chunks=6), IDLE_S), source.update(0, 1)
    cache.announce(coming, 0.0)
    assert cache.on_credit("a", credit(coming, (0, 4)), 0.0) == []
    late = source.update(1, 1)
    assert kept(source, cache, late) == [False]
    assert (cache.counters.passed, cache.early.chunks) == (1, 4)
    assert cache.on_credit("a", credit(late), 0.0) is None
    assert len(give(cache, source.chunks(coming))) == 4
    assert kept(source, cache, source.update(2, 1)) == [True], "now nobody waits any more"


def test_what_never_fits_puts_nobody_out(source: Source) -> None:
    cache = Cache(params(chunks=8), IDLE_S)
    small = source.update(0, 1)
    assert kept(source, cache, small, source.update(1, 1, chunks=9)) == [True, False]
    assert served(cache, small) == source.bytes[small.body.transfer]


def test_small_ones_stay_where_they_would_not_make_room_enough(source: Source) -> None:
    cache = Cache(params(chunks=8), IDLE_S)
    coming, small = source.update(0, 1), source.update(1, 1, chunks=2)
    assert kept(source, cache, small) == [True]
    cache.announce(coming, 0.0)
    assert cache.on_credit("a", credit(coming, (0, 4)), 0.0) == [], "it is waited for, and may not go"
    assert kept(source, cache, source.update(2, 1, chunks=6)) == [False]
    assert served(cache, small) == source.bytes[small.body.transfer]
    assert cache.counters.evicted == 0


def test_an_older_state_does_not_put_a_newer_one_of_its_fragment_out(source: Source) -> None:
    cache = Cache(params(chunks=4), IDLE_S)
    new, old = source.update(0, 2), source.update(0, 1)
    assert kept(source, cache, new, old) == [True, False]


def test_nothing_with_a_wrong_checksum_or_digest_is_handed_out(source: Source) -> None:
    cache, update = Cache(params(), IDLE_S), source.update(0, 1)
    wrong = Update(
        fragment=0, stamp=update.stamp, full=False, codec="bf16", value_bytes=1,
        body=Body(transfer="wrong", nbytes=4 * CHUNK, chunk_bytes=CHUNK, digest=update.body.digest ^ 1),
    )  # fmt: skip
    cache.announce(update, 0.0)
    cache.announce(wrong, 0.0)
    chunks = source.chunks(update)
    cache.on_credit("a", credit(update), 0.0)
    bad = Chunk(transfer=update.body.transfer, index=0, checksum=chunks[0].checksum)
    assert cache.on_chunk(bad, memoryview(bytes(CHUNK)), 0.0) == []
    assert len(give(cache, chunks)) == 4
    cache.on_credit("b", credit(wrong, (0, 1)), 0.0)
    for chunk in chunks:
        cache.on_chunk(Chunk(transfer="wrong", index=chunk.index, checksum=chunk.checksum), chunk.view, 0.0)
    turn = cache.turn(0.1)
    assert "wrong" not in cache
    assert [type(message) for message in turn.upstream if message.transfer == "wrong"] == [Gone]


def with_wrong_digest(update: Update) -> Update:
    body = update.body
    return replace(update, body=replace(body, digest=body.digest ^ 1))


@pytest.mark.parametrize("room", ["none", "replaced", "enough"])
def test_of_a_wrong_digest_nothing_is_left_whatever_comes_before_the_next_turn(source: Source, room: str) -> None:
    cache = Cache(params(chunks=4 if room == "none" else 100), IDLE_S)
    wrong = with_wrong_digest(source.update(0, 1))
    assert kept(source, cache, wrong) == [False]
    assert cache.dropped == [wrong.body.transfer]
    assert served(cache, wrong) is None
    assert cache.nbytes == 0
    later = [source.update(0, version) for version in range(2, 10 if room == "replaced" else 3)]
    if room != "enough":
        kept(source, cache, *later)
    assert [type(message) for message in cache.turn(50.0).upstream] == [Gone]
    assert (later[-1].body.transfer in cache) == (room != "enough")


def test_the_name_of_a_wrong_body_may_stand_for_the_right_one_at_once(source: Source) -> None:
    cache, right = Cache(params(), IDLE_S), source.update(0, 1)
    assert kept(source, cache, with_wrong_digest(right), right) == [True, True]
    cache.turn(0.1)
    assert served(cache, right) == source.bytes[right.body.transfer]


def test_who_waits_is_told_when_a_body_will_not_come(source: Source) -> None:
    cache, update = Cache(params(), IDLE_S), source.update(0, 1, full=True)
    gone = Gone(transfer=update.body.transfer, by_sender=True, reason="dropped")
    cache.announce(update, 0.0)
    cache.on_credit("a", credit(update), 0.0)
    cache.on_upstream_gone(gone)
    assert cache.turn(0.1).gone == [("a", gone)]
    assert update.body.transfer not in cache
    assert cache.nbytes == 0


def test_without_any_progress_a_body_is_given_up_and_its_memory_is_free(source: Source) -> None:
    cache, update = Cache(params(), IDLE_S), source.update(0, 1, full=True)
    cache.announce(update, 0.0)
    cache.on_credit("a", credit(update), 0.0)
    told, now = [], 0.0
    while update.body.transfer in cache:
        now = cache.deadline() or now
        assert now < 100.0
        told = cache.turn(now).gone
    told += cache.turn(now).gone
    assert [peer for peer, _ in told] == ["a"]
    assert cache.nbytes == 0


def test_whole_bodies_outlive_their_source(source: Source) -> None:
    cache, update = Cache(params(), IDLE_S), source.update(0, 1)
    kept(source, cache, update)
    cache.on_upstream_gone(Gone(transfer=update.body.transfer, by_sender=True, reason=""))
    assert served(cache, update) == source.bytes[update.body.transfer]


def test_a_name_that_stands_for_another_body_replaces_the_first(source: Source) -> None:
    """A restart of the syncer under an old name cannot happen; if it did, nobody would get bytes of both."""
    cache, update = Cache(params(), IDLE_S), source.update(0, 1)
    kept(source, cache, update)
    other = Source()
    body = other.box.add(update.body.transfer, bytes(2 * CHUNK), CHUNK)
    again = Update(
        fragment=0, stamp=update.stamp, full=False, codec="bf16", value_bytes=1, body=body
    )  # fmt: skip
    cache.announce(again, 1.0)
    assert cache.dropped == [update.body.transfer]
    give(cache, other.chunks(again), 1.0)
    assert served(cache, again) == bytes(2 * CHUNK)


def test_who_gave_up_or_is_forgotten_is_sent_nothing(source: Source) -> None:
    cache, update = Cache(params(), IDLE_S), source.update(0, 1)
    cache.announce(update, 0.0)
    for peer in ("a", "b", "c"):
        cache.on_credit(peer, credit(update, (0, 4)), 0.0)
    assert cache.on_gone("a", Gone(transfer=update.body.transfer, by_sender=False, reason=""))
    cache.forget_peer("b")
    assert {chunk.peer for chunk in give(cache, source.chunks(update))} == {"c"}


def test_one_peer_awaits_so_many_chunks_at_most(source: Source) -> None:
    cache, update = Cache(params(chunks=3000), IDLE_S), source.update(0, 1, chunks=2000)
    cache.announce(update, 0.0)
    for first in range(0, 2000, 100):
        cache.on_credit("greedy", credit(update, (first, 100)), 0.0)
    cache.on_credit("modest", credit(update, (1999, 1)), 0.0)
    out = give(cache, source.chunks(update))
    assert [sum(chunk.peer == peer for chunk in out) for peer in ("greedy", "modest")] == [MOST_AWAITED, 1]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_the_budget_holds_and_only_right_bytes_go_out(seed: int) -> None:
    rng = random.Random(seed)
    source, cache = Source(), Cache(params(chunks=rng.choice([5, 12, 40])), IDLE_S)
    updates: list[Update] = []
    for turn in range(300):
        now = turn / rng.choice([1, 10])
        what = rng.random()
        if what < 0.25 or not updates:
            full = rng.random() < 0.3
            updates.append(source.update(rng.randrange(3), turn, full=full, chunks=rng.choice([0.5, 3, 6])))
            cache.announce(updates[-1], now)
        update = rng.choice(updates[-6:])
        out: list[ChunkOut] = []
        if what < 0.7:
            chunk = rng.choice(source.chunks(update))
            payload = chunk.view if rng.random() < 0.9 else memoryview(bytes(chunk.view.nbytes))
            out = cache.on_chunk(chunk.header, payload, now, early=rng.random() < 0.5)
        elif what < 0.9:
            out = cache.on_credit(rng.choice("abc"), credit(update, (0, rng.randint(1, 6))), now) or []
        elif what < 0.95:
            cache.forget_peer(rng.choice("abc"))
        else:
            cache.turn(now)
        for each in out:
            start = each.index * CHUNK
            assert bytes(each.view) == source.bytes[each.transfer][start : start + CHUNK]
        assert cache.nbytes <= cache.inbox.params.budget_bytes
        assert cache.nbytes == sum(u.body.nbytes for u in updates if u.body.transfer in cache)
