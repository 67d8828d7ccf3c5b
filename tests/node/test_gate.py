"""Whose a frame is: by its key, whatever it says; so who floods or babbles is dropped and banned, and nobody else."""

import datetime
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from zdiloco.core.messages import Heartbeat, Hello, Pull, StatusQuery, Unwelcome
from zdiloco.node.allowed import Allowed, Entry, Right
from zdiloco.node.gate import Gate
from zdiloco.node.guard import Guard
from zdiloco.node.limits import Dropped
from zdiloco.node.params import NetParams
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Road, identity_of
from zdiloco.units import NO_EPOCH, MemberKey
from zdiloco.wire.encoding import decode, encode
from zdiloco.wire.outbox import ChunkOut
from zdiloco.wire.transfer import Chunk, Credit

BEAT = encode(Heartbeat(epoch=NO_EPOCH))
NET = NetParams(
    most_offences=10, peer_messages_per_s=10.0, peer_unasked_bytes_per_s=2048.0, ban_s=60.0, chunk_bytes=1024,
    window_bytes=4096,
)  # fmt: skip


class Frame:
    """A frame as the library hands it out: bytes, and the key of the connection that it came on."""

    def __init__(self, data: bytes, key: str) -> None:
        self.bytes, self.buffer, self._key = data, memoryview(data), key

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, what: str) -> str:
        assert what == "User-Id"
        return self._key


class Wire:
    """A socket that takes everything."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def send_multipart(self, frames: list[Any], *options: Any, copy: bool = True) -> None:
        self.sent.append([bytes(frame) for frame in frames])


class Door(Guard):
    """A guard without a socket and files."""

    def __init__(self, **entries: Entry) -> None:
        self.allowed = Allowed(entries, {entry.key: name for name, entry in entries.items()})
        self.strangers, self._told = Counter(), set()
        self._today = lambda: datetime.date(2030, 1, 1)
        self._day = self._told_on = self._today()


class House:
    """Roads with a gate, and with keys unless `keyless`; time stands still until it is moved."""

    def __init__(self, *, keyless: bool = False) -> None:
        self.now = 100.0
        relay = (Right.RELAY,)
        guard = Door(
            a=Entry(key="key-a"), eve=Entry(key="key-eve"), east=Entry(key="key-east", rights=relay, names=("x-*",)),
            west=Entry(key="key-west", rights=relay, names=("y-*",)),
        )  # fmt: skip
        self.wire = Wire()
        self.gate = Gate(NET, None if keyless else guard, lambda: self.now)
        sockets: Any = {road: self.wire for road in (Road.CONTROL, Road.BULK)}
        self.roads = Roads(sockets, server=True, guard=None if keyless else guard, gate=self.gate)

    def hears(self, by: str, key: MemberKey, *data: bytes, road: Road = Road.CONTROL, token: str = "") -> Any:
        frames = [Frame(each, f"key-{by}") for each in (identity_of(key, token=token), *data)]
        return self.roads._parse(road, frames)

    def told(self) -> list[Any]:
        return [decode(frames[1]) for frames in self.wire.sent]

    def banned(self) -> list[str]:
        return [each["name"] for each in self.gate.status()["banned"]]


@pytest.fixture
def house() -> House:
    return House()


A, EVE = MemberKey("a", 7), MemberKey("eve", 666)


def test_what_is_no_message_is_counted_under_whose_key_it_came(house: House) -> None:
    """Not under the name that it bears: else anybody could have somebody else's counts, and bans."""
    for _ in range(5):
        assert house.hears("eve", A, b"garbage") is None
    assert A not in house.roads.counts
    assert house.roads.of(MemberKey("eve", 7)).malformed == {"frame": 5}


def test_another_version_is_counted_under_whose_key_it_came(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.hears("eve", A, b"\x82\xa1v\x63\xa1t\xa5hello")
    assert A not in house.roads.counts
    assert "eve is turned away" in caplog.text


@pytest.mark.parametrize("what", ["garbage", "another's name", "another's hello", "no identity", "as a role says"])
def test_whoever_breaks_a_rule_again_and_again_is_banned(house: House, what: str) -> None:
    breaks: dict[str, Callable[[], Any]] = {
        "garbage": lambda: house.hears("eve", A, b"garbage"),
        "another's name": lambda: house.hears("eve", A, BEAT),
        "another's hello": lambda: house.hears("eve", EVE, encode(Hello(name="a", incarnation=7))),
        "no identity": lambda: house.roads._parse(Road.CONTROL, [Frame(b"?", "key-eve"), Frame(BEAT, "key-eve")]),
        "as a role says": lambda: (house.hears("eve", EVE, BEAT), house.roads.offends(EVE, "MalformedFrame")),
    }
    for _ in range(10):
        breaks[what]()
    assert house.banned() == ["eve"]
    assert house.hears("eve", EVE, BEAT) is None
    assert house.hears("a", A, BEAT).key == A, "nobody else is"
    assert house.gate.limits.dropped[Dropped.BANNED] >= 1
    house.now += 60.0
    house.gate.turn()
    assert house.hears("eve", EVE, BEAT).key == EVE, "its time is over"


def test_whoever_is_banned_is_told_so_once(house: House) -> None:
    for _ in range(30):
        house.hears("eve", EVE, b"garbage")
    told = [message for message in house.told() if isinstance(message, Unwelcome)]
    assert [(message.reason, message.fatal) for message in told] == [("banned", False)]
    assert "banned for 60 s" in told[0].text


def test_an_operator_releases_at_once(house: House) -> None:
    for _ in range(10):
        house.hears("eve", EVE, b"garbage")
    house.gate.release_all()
    assert house.hears("eve", EVE, BEAT).key == EVE


def test_words_over_the_limit_are_not_even_parsed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    monkeypatch.setattr("zdiloco.node.reading.decode", lambda data: parsed.append(1) or decode(data))
    for _ in range(1000):
        house.hears("eve", EVE, BEAT)
    assert len(parsed) == 50
    assert house.hears("a", A, BEAT) is not None
    assert house.gate.limits.dropped == {Dropped.WORDS: 1000 - 50}
    assert house.gate.status()["over"] == [{"name": "eve", "words": 950}]


def test_chunks_that_nobody_asked_for_are_dropped_and_those_asked_for_are_not(house: House) -> None:
    head = encode(Chunk(transfer="c/1", index=0, checksum=0))
    house.hears("a", A, BEAT)
    taken = sum(house.hears("a", A, head, bytes(1024), road=Road.BULK) is not None for _ in range(100))
    assert taken == 4 * 4096 // 1024, "four windows, and that is more than five seconds of the rate"
    for turn in range(1, 100):
        house.roads.send(A, Credit(transfer="c/1", upto=1024 * turn, received=1024 * (turn - 1)))
        assert house.hears("a", A, head, bytes(1024), road=Road.BULK) is not None


def test_whoever_says_how_far_it_is_after_each_chunk_is_never_over(house: House) -> None:
    house.hears("a", A, BEAT)
    for index in range(500):
        house.roads.send_chunks(A, [ChunkOut(A, "t/1", index, 0, memoryview(b"x"))])
        house.roads.flush(1)
        assert house.hears("a", A, BEAT) is not None


def test_a_question_that_is_answered_does_not_pay_for_the_next(house: House) -> None:
    """Else a flood of what is answered would have no limit."""
    for fragment in range(200):
        if house.hears("a", A, BEAT) is not None:
            house.roads.send(A, Pull(fragment=fragment % 500))
    assert house.gate.limits.dropped == {Dropped.WORDS: 150}


def test_a_learner_behind_a_relay_cannot_have_the_region_banned(house: House) -> None:
    """Each name that a relay speaks for has an account of its own, also one that it may not speak for."""
    good, bad = MemberKey("x-1", 1), MemberKey("x-2", 2)
    for _ in range(20):
        house.hears("east", bad, BEAT, b"too many frames")
        house.hears("east", MemberKey("stranger", 3), BEAT)
    assert sorted(house.banned()) == ["east/stranger", "east/x-2"]
    assert house.hears("east", good, BEAT).key == good
    assert house.hears("east", MemberKey("relay", 9), BEAT).key.name == "relay"
    assert house.hears("west", MemberKey("y-1", 2), BEAT) is not None


def test_one_relay_cannot_take_the_place_of_another(house: House) -> None:
    """Both are called relay upstream: the number is the first one's, and so is what is sent to it."""
    relay = MemberKey("relay", 9)
    assert house.hears("east", relay, BEAT, token="1" * 16) is not None
    assert house.hears("west", relay, BEAT, token="2" * 16) is None
    assert house.roads.strangers == {"key": 1}
    house.roads.send(relay, Pull(fragment=1))
    assert house.wire.sent[-1][0] == identity_of(relay, token="1" * 16)
    assert house.hears("west", MemberKey("relay", 10), BEAT) is not None


def test_a_learner_may_go_from_one_relay_to_another(house: House) -> None:
    """Its process stays the same: what it is sent is on its new account."""
    house.gate._guard.allowed.entries["west"] = Entry(key="key-west", rights=(Right.RELAY,), names=("x-*",))
    key = MemberKey("x-1", 1)
    assert house.hears("east", key, BEAT) is not None
    assert house.hears("west", key, BEAT) is not None
    assert house.gate._who[key] == "west/x-1"


def test_who_asks_how_the_run_is_asks_on_its_own_account(house: House) -> None:
    """The name under which one asks is everybody's."""
    for _ in range(200):
        house.hears("eve", MemberKey("status", 1), encode(StatusQuery()))
    assert house.hears("a", MemberKey("status", 1), encode(StatusQuery())) is not None
    assert house.gate.status()["over"][0]["name"] == "eve"


def test_without_keys_a_process_is_judged_by_its_identity() -> None:
    house = House(keyless=True)
    for _ in range(10):
        house.hears("?", EVE, b"garbage")
        house.roads._parse(Road.CONTROL, [Frame(b"?", ""), Frame(BEAT, "")])
    assert sorted(house.banned()) == ["a stranger", "eve:000000000000029a"]
    assert house.hears("?", A, BEAT).key == A
    assert house.hears("?", MemberKey("eve", 667), BEAT) is not None, "nobody can tell them apart"


def test_strangers_are_told_of_again_on_another_day(caplog: pytest.LogCaptureFixture) -> None:
    """However many came before: what is remembered of them has a bound, and weeks would fill it."""
    door, day = Door(), datetime.date(2030, 1, 1)
    door._today = lambda: day
    for number in range(1500):
        door._turned_away(f"10.0.{number >> 8}.{number & 255}", "its key is not in net.allowed")
    assert len(caplog.records) == 1000
    day = datetime.date(2030, 1, 2)
    door._turned_away("10.9.9.9", "its key is not in net.allowed")
    assert caplog.records[-1].getMessage() == "turned away who=10.9.9.9 why='its key is not in net.allowed'"
