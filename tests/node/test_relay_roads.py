"""What a relay opens: descriptors for so many learners, and what tells that stripes have carried."""

import resource

import pytest

from zdiloco.core.machine import SYNCER
from zdiloco.errors import ConfigError
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.relay_roads import credited, most_sockets, open_descriptors
from zdiloco.node.roads import Roads
from zdiloco.wire.transfer import Credit


@pytest.mark.parametrize(("soft", "hard", "raised"), [(256, 4096, True), (4096, 4096, False), (-1, -1, False)])
def test_the_limit_is_raised_where_it_may_be(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: bool
) -> None:  # fmt: skip
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: limits.append(both))
    open_descriptors(NetParams(), RelayParams())
    assert [(least >= 64 * 8, most) for least, most in limits] == [(True, hard)] * raised


def test_too_many_learners_for_the_system_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    with pytest.raises(ConfigError, match=r"relay.most_learners is 1000: that takes \d+ descriptors, .* 4096"):
        open_descriptors(NetParams(), RelayParams(most_learners=1000))


def test_each_stripe_is_a_socket() -> None:
    one, four = (most_sockets(NetParams(stripes=count), RelayParams(most_learners=10)) for count in (1, 4))
    assert four - one == 3 * 12


def test_stripes_are_sound_again_when_nothing_that_they_carried_is_missing() -> None:
    roads = Roads({}, server=True, most_stripes=2)
    stripes = roads.stripes_of(SYNCER)
    for index in range(2):
        stripes.carries(index, "a", index)
    stripes.asked_again("a", 0)
    assert list(stripes.turns()) == [1]
    credited(roads, SYNCER, Credit(transfer="a", upto=9, received=5, missing=((0, 1),)))
    credited(roads, SYNCER, Credit(transfer="a", upto=9, received=8))
    assert list(stripes.turns()) == [1]
    stripes.carries(0, "a", 0)  # after its rest it is tried again
    credited(roads, SYNCER, Credit(transfer="a", upto=9, received=9))
    assert sorted(stripes.turns()) == [0, 1]
