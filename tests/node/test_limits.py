"""Limits in virtual time: who keeps the protocol meets none, who floods is dropped, and banned for a while."""

import logging
import random

import pytest

from zdiloco.errors import ConfigError
from zdiloco.node import limits as limits_module
from zdiloco.node.limits import BURST_S, LEAST_CHUNK, MOST_ACCOUNTS, Dropped, Limits
from zdiloco.node.params import NetParams

NET = NetParams(
    peer_messages_per_s=10.0, messages_per_s=50.0, peer_unasked_bytes_per_s=2048.0, unasked_bytes_per_s=8192.0,
    chunk_bytes=1024, window_bytes=4096, most_offences=20, ban_s=60.0, most_ban_s=600.0,
)  # fmt: skip


def limits() -> Limits:
    return Limits(NET, now=0.0)


def words(made: Limits, who: str, count: int, now: float) -> int:
    """So many messages at one moment; how many of them were let through."""
    return sum(made.takes_word(who, now) for _ in range(count))


def ban(made: Limits, who: str, now: float) -> None:
    while not made.offends(who, "frame", now):
        continue


def test_a_burst_is_taken_and_then_the_rate() -> None:
    made = limits()
    assert words(made, "a", 150, 0.0) == BURST_S * 10
    assert words(made, "a", 50, 1.0) == 10
    assert made.dropped[Dropped.WORDS] == 150 - BURST_S * 10 + 50 - 10


@pytest.mark.parametrize("per_s", [10, 100, 600])
def test_whoever_only_answers_meets_no_limit(per_s: int) -> None:
    """However fast its link is: a word for each frame that it was sent, and the bytes that it was asked for."""
    made, sent, now = limits(), 0, 0.0
    made.takes_word("a", now)
    for turn in range(20 * per_s):
        now = turn / per_s
        for _ in range(3):
            made.was_sent("a")
            assert made.takes_word("a", now)
        made.was_asked("a", 2500)
        for nbytes in (1024, 1024, 452):
            assert made.takes_chunk("a", nbytes, now)
            sent += nbytes
    assert made.dropped == {}
    assert sent > 20 * NET.peer_unasked_bytes_per_s


@pytest.mark.parametrize("seed", range(20))
def test_a_receiver_that_asks_in_any_order_is_never_short(seed: int) -> None:
    """Credits that grow, are repeated and come late: what they allow has always come in before."""
    rng, made, granted, came = random.Random(seed), limits(), 0, 0
    now = 0.0
    made.takes_word("a", now)
    for _ in range(3000):
        now += rng.random() / 1000
        if rng.random() < 0.5 and granted - came <= NET.window_bytes - 1024:
            granted += rng.randint(1, 1024)
            made.was_asked("a", granted - came)
        elif came < granted:
            size = min(granted - came, rng.randint(1, 1024))
            assert made.takes_chunk("a", size, now)
            came += size


def test_chunks_that_nobody_asked_for_count_whatever_their_size() -> None:
    made = limits()
    fit = 4 * NET.window_bytes // LEAST_CHUNK  # more than BURST_S of the rate
    assert sum(made.takes_chunk("a", 1, 0.0) for _ in range(2 * fit)) == fit
    assert made.dropped[Dropped.BYTES] == fit


def test_many_that_flood_do_not_take_the_place_of_one_that_does_not() -> None:
    """All together are over the limit: those who have sent much themselves are dropped, and nobody else."""
    made, now, taken = limits(), 0.0, 0
    for turn in range(400):
        now = turn / 10
        for number in range(12):
            taken += words(made, f"flood-{number}", 3, now)
        assert made.takes_word("honest", now)
    assert taken <= 50 * (now + BURST_S) - 40
    assert set(made.dropped) == {Dropped.WORDS}


def test_very_many_names_at_once_are_bounded_by_what_all_may_send() -> None:
    made = limits()
    assert sum(made.takes_word(f"eve-{number}", 0.0) for number in range(5000)) == BURST_S * 50
    assert len(made.status(0.0)["over"]) <= limits_module.MOST_SHOWN
    assert len(made._accounts) <= MOST_ACCOUNTS


def test_it_is_told_once_that_somebody_is_over(caplog: pytest.LogCaptureFixture) -> None:
    made = limits()
    with caplog.at_level(logging.WARNING, "zdiloco.node.limits"):
        words(made, "a", 1000, 0.0)
        words(made, "a", 1000, 0.5)
    assert [record.getMessage() for record in caplog.records] == ["over the limit who=a of=words"]


def test_so_many_offences_in_a_minute_are_a_ban() -> None:
    made = limits()
    assert [made.offends("a", "frame", 0.0) for _ in range(20)] == [False] * 19 + [True]
    assert made.is_banned("a")
    assert not made.is_banned("b")
    assert made.dropped[Dropped.BANNED] == 1


def test_offences_that_come_slowly_are_forgiven() -> None:
    made = limits()
    assert not any(made.offends("a", "frame", 4.0 * turn) for turn in range(1000))


def test_whoever_stays_over_the_limit_is_banned_within_seconds() -> None:
    """Ten seconds over, and each dropped message alone is none of the offences: a burst is not a ban."""
    made, now = limits(), 0.0
    words(made, "a", 100_000, now)
    assert not made.is_banned("a")
    while not made.is_banned("a"):
        now += 0.1
        words(made, "a", 1000, now)
    assert 8.0 <= now <= 15.0


def test_bans_end_by_themselves_and_double_up_to_the_longest(caplog: pytest.LogCaptureFixture) -> None:
    made, now, lasted = limits(), 0.0, []
    with caplog.at_level(logging.WARNING, "zdiloco.node.limits"):
        for _ in range(6):
            began = now
            ban(made, "a", now)
            while made.is_banned("a"):
                now += 1.0
                made.sweep(now)
            lasted.append(now - began)
    assert lasted == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["banned who=a for_s=60 times=1 why='frame'", "banned no more who=a why='its time is over'"]
    assert made.takes_word("a", now)


def test_whoever_behaves_for_long_is_as_good_as_new() -> None:
    made = limits()
    ban(made, "a", 0.0)
    made.sweep(60.0)
    made.sweep(60.0 + 600.0)
    assert made._bans == {}
    ban(made, "a", 700.0)
    assert made.status(700.0)["banned"] == [{"name": "a", "why": "frame", "until_s": 60.0, "times": 1}]


def test_an_operator_releases_everybody_at_once(caplog: pytest.LogCaptureFixture) -> None:
    made = limits()
    ban(made, "a", 0.0)
    with caplog.at_level(logging.WARNING, "zdiloco.node.limits"):
        assert made.release_all(1.0) == ["a"]
    assert not made.is_banned("a")
    assert "banned no more who=a why='an operator said so'" in caplog.text
    assert made.status(1.0)["banned"] == []


def test_a_banned_peer_is_loud_after_many_frames_and_a_learner_that_waits_is_not() -> None:
    made = limits()
    ban(made, "a", 0.0)
    loud = 0
    for _ in range(2 * limits_module.LOUD_FRAMES + 600):  # a learner's words of a minute
        assert made.is_banned("a")
        loud += made.is_loud("a")
    assert loud == 2
    assert not made.is_loud("b")


def test_what_is_remembered_of_bans_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MOST_ACCOUNTS", 8)
    made = limits()
    for number in range(20):
        ban(made, f"eve-{number}", float(number))
    assert len(made._bans) == 8
    assert made.is_banned("eve-19")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"most_offences": 0}, "net.most_offences is 0"),
        ({"ban_s": 10.0, "most_ban_s": 5.0}, "net.most_ban_s is 5.0; allowed is 10"),
        ({"peer_messages_per_s": 0.0}, "net.peer_messages_per_s is 0.0"),
        ({"handshake_s": 0.0}, "net.handshake_s is 0.0"),
        ({"most_connections": 3}, "net.most_connections is 3"),
    ],
)
def test_wrong_limits_are_named(wrong: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        NetParams(**wrong)


def test_who_is_drowned_by_others_is_not_banned_for_it() -> None:
    """Nothing is left for anybody: what an honest peer says is dropped, too, but that is not its fault."""
    made, now = limits(), 0.0
    for turn in range(600):
        now = turn / 10
        for number in range(60):
            words(made, f"eve-{turn}-{number}", 2, now)
        made.takes_word("honest", now)
    assert made._accounts["honest"].dropped[Dropped.WORDS] > 0
    assert made._accounts["honest"].faults.level == NET.most_offences
    assert made.status(now)["banned"] == []
