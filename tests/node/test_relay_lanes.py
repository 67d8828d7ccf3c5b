"""Who may have a lane of a relay when there are more learners than lanes; and lanes that end while others are read."""

import errno
from dataclasses import dataclass, field
from typing import Any

import pytest
import zmq

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Goodbye, Heartbeat, Hello
from zdiloco.node import relay_lanes
from zdiloco.node.clock import monotonic
from zdiloco.node.entrance import Entrance
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.reading import Arrival
from zdiloco.node.relay_lanes import Lane, Lanes
from zdiloco.node.relay_loop import RelayLoop, Station
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Road
from zdiloco.node.wake import Wake
from zdiloco.units import NO_EPOCH, MemberKey
from zdiloco.wire.lane_life import BRIEF_S

FORGET_S = 30.0


class Mute(Roads):
    """Roads without sockets."""

    def __init__(self) -> None:
        super().__init__({}, server=False)

    def send(self, key: MemberKey, message: Any) -> None:
        """Nobody is there to hear it."""


@dataclass
class Place:
    """Lanes for two, and who has lost one."""

    monkeypatch: pytest.MonkeyPatch
    lost: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(relay_lanes, "lane_roads", lambda *args: Mute())
        params = RelayParams(most_learners=2, forget_after_s=FORGET_S)
        net = NetParams()
        self.lanes = Lanes(None, net, params, monotonic, lambda lane: None, self._closed, Entrance(net, None))

    def _closed(self, lane: Lane) -> None:
        self.lost.append(lane.key.name)

    def comes(self, name: str, now: float, incarnation: int = 1, *, greets: bool = True) -> Lane | None:
        lane = self.lanes.open(MemberKey(name, incarnation), now)
        if lane is not None and greets:
            lane.say(Hello(name=name, incarnation=incarnation))
        return lane


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def test_a_learner_keeps_its_lane_while_it_is_not_forgotten_however_many_knock(place: Place) -> None:
    """A link that stalls for some seconds is no reason to give a learner's place to whoever comes."""
    place.comes("a", 0.0)
    place.comes("b", 0.0)
    assert place.comes("c", FORGET_S) is None
    assert place.lost == []
    assert place.comes("c", FORGET_S + 0.1) is not None
    assert place.lost == ["a"]


@pytest.mark.parametrize("why", ["left", "newer", "stranger"])
def test_a_lane_that_nobody_counts_on_is_given_up_for_one_who_comes(place: Place, why: str) -> None:
    a = place.comes("a", 0.0, greets=why != "stranger")
    assert a is not None
    if why == "left":
        a.say(Goodbye(reason="", trained_tokens=0, left_tokens=0, dropped_tokens=0))
    place.comes("a" if why == "newer" else "b", 1.0, 2)
    soon = 1.1 if why == "stranger" else BRIEF_S + 0.1
    assert place.comes("c", soon - 0.2) is None
    assert place.comes("c", soon) is not None
    assert place.lost == ["a"]


def test_a_newer_process_needs_no_place_of_its_own_and_the_place_beside_is_nobody_elses(place: Place) -> None:
    """Which of the two stays says the syncer, to each on its own lane."""
    old, other = place.comes("a", 0.0, 1), place.comes("b", 0.0)
    assert old is not None
    assert other is not None
    assert place.comes("a", 1.0, 2) is not None
    assert place.comes("a", 1.0, 3) is None
    assert place.comes("b", 1.0, 2) is None
    assert place.lost == []
    old.say(Goodbye(reason="", trained_tokens=0, left_tokens=0, dropped_tokens=0))
    assert place.comes("c", BRIEF_S + 0.1) is None, "there was one too many"
    assert place.lost == ["a"]
    assert place.comes("b", BRIEF_S + 0.1, 2) is not None


class Never:
    """Time has nothing to do."""

    def on_time(self, now: float) -> None: ...

    def deadline(self) -> float:
        return monotonic() + 60.0


@pytest.mark.net
def test_a_station_that_another_one_ends_in_the_same_pass_is_not_read(zctx: Any) -> None:
    """What came in for both is at hand; the first one's word closes the sockets of the second."""
    wake, heard = Wake(), list[str]()
    loop = RelayLoop(wake, monotonic)
    here: dict[str, Roads] = {}
    there: list[Roads] = []

    def take(road: Road, arrival: Arrival, now: float) -> None:
        heard.append("x")
        if len(here) > 1:
            loop.remove("second")
            here.pop("second").close(0)
            loop.stop(0.0)

    for name in ("first", "second"):
        ends = [zctx.socket(zmq.PAIR) for _ in range(2)]
        ends[0].bind(f"inproc://{name}")
        ends[1].connect(f"inproc://{name}")
        here[name], far = (Roads({Road.CONTROL: end}, server=False) for end in ends)
        there.append(far)
        loop.add(name, Station(here[name], take))
        far.send(SYNCER, Heartbeat(epoch=NO_EPOCH))
    loop.run(Never())
    assert heard == ["x"]
    for roads in (*here.values(), *there):
        roads.close(0)
    wake.close()


def test_where_no_socket_is_free_a_learner_is_turned_away_and_the_relay_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library frees closed ones late: many new names at once would otherwise end the relay."""
    place = Place(monkeypatch)

    def none_free(*_: Any) -> Roads:
        raise zmq.ZMQError(errno.EMFILE)

    with monkeypatch.context() as patch:
        patch.setattr(relay_lanes, "lane_roads", none_free)
        assert place.comes("a", 0.0) is None
    assert len(place.lanes) == 0
    assert place.comes("a", 1.0) is not None
