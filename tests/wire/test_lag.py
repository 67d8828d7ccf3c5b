"""How far learners are behind what is published, by what they say."""

from zdiloco.core.messages import Beat, Body, Contribution, Hello, Pull, Update
from zdiloco.units import Epoch, Stamp
from zdiloco.wire.lag import Lag

EPOCH = Epoch(1, 7)
BODY = Body(transfer="x", nbytes=1, chunk_bytes=1024, digest=1)


def update(fragment: int, version: int, epoch: Epoch = EPOCH) -> Update:
    return Update(fragment=fragment, stamp=Stamp(epoch, version), full=False, codec="bf16", value_bytes=1, body=BODY)


def contribution(fragment: int, version: int) -> Contribution:
    return Contribution(
        fragment=fragment, seq=1, after=0, stamp=Stamp(EPOCH, version), steps=1, tokens=1, cut_step=1,
        version=version + 1, codec="bf16", body=BODY,
    )  # fmt: skip


def test_it_is_that_of_the_fragment_that_is_furthest_behind() -> None:
    lag = Lag()
    assert lag.versions("a") is None, "nothing is known"
    lag.published(update(0, 5))
    lag.published(update(1, 9))
    assert lag.versions("a") is None, "it has named no state"
    lag.said("a", contribution(0, 5))
    assert lag.versions("a") == 0
    lag.said("a", contribution(1, 6))
    assert lag.versions("a") == 3
    lag.said("a", contribution(1, 9))
    assert lag.versions("a") == 0


def test_beats_and_hellos_tell_too_and_a_late_update_changes_nothing() -> None:
    lag = Lag()
    lag.published(Beat(epoch=EPOCH, open_rounds=(), versions=(4, 8), stable=(), progress=0.0))
    lag.published(update(1, 3))
    lag.said("a", Hello(name="a", incarnation=1, stamps=(Stamp(EPOCH, 4), Stamp(EPOCH, 1))))
    assert lag.versions("a") == 7


def test_states_of_another_epoch_are_not_compared() -> None:
    lag = Lag()
    lag.published(update(0, 5))
    lag.said("a", contribution(0, 5))
    lag.published(update(0, 3, Epoch(2, 1)))
    assert lag.versions("a") is None


def test_what_is_forgotten_is_not_known_and_pulls_are_counted() -> None:
    lag = Lag()
    lag.published(update(0, 5))
    lag.said("a", contribution(0, 3))
    lag.said("a", Pull(fragment=0))
    assert (lag.versions("a"), lag.of("a").pulled) == (2, 1)
    lag.forget("a")
    assert (lag.versions("a"), lag.of("a").pulled) == (None, 0)
