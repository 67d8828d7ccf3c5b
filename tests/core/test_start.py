"""How a syncer without state comes to have some: a donor's values."""


import pytest

from tests.core.samples import ANN, BOB, BODY, EVE, hello, messages
from zdiloco.core.machine import (
    Fetch,
    Note,
    Send,
)
from zdiloco.core.messages import (
    Donate,
    InitialOffer,
    LayoutOffer,
)
from zdiloco.core.start import TABLE, Donation, SyncerPhase, SyncerTurn
from zdiloco.units import Epoch

P, T = SyncerPhase, SyncerTurn
OLD, NEW = Epoch(3, 77), Epoch(4, 11)


ROADS = {
    "a new run": [(T.HAS_ALL, P.SEALING), (T.SEALED, P.RUNNING), (T.TARGET, P.DRAINING), (T.DRAINED, P.SAVING)],
    "asked to leave": [(T.HAS_ALL, P.SEALING), (T.SEALED, P.RUNNING), (T.LEAVE, P.SAVING), (T.SAVED, P.STOPPED)],
    "asked twice": [(T.HAS_ALL, P.SEALING), (T.SEALED, P.RUNNING), (T.LEAVE, P.SAVING), (T.LEAVE, P.STOPPED)],
    "asked to leave at the end": [
        (T.HAS_ALL, P.SEALING), (T.SEALED, P.RUNNING), (T.TARGET, P.DRAINING), (T.LEAVE, P.SAVING),
    ],
    "nothing to save yet": [(T.LEAVE, P.STOPPED)],
}  # fmt: skip


@pytest.mark.parametrize("road", ROADS)
def test_the_roads_of_a_syncer(road: str) -> None:
    phase = P.EMPTY
    for turn, then in ROADS[road]:
        phase = TABLE[phase, turn]
        assert phase is then


def test_a_higher_epoch_stops_a_syncer_that_has_an_epoch_of_its_own() -> None:
    """One that is only starting goes above whatever it hears of."""
    fenced = {phase for (phase, turn), then in TABLE.items() if turn is T.FENCED and then is P.STOPPED}
    assert fenced == {P.SEALING, P.RUNNING, P.DRAINING, P.SAVING}


def test_nothing_of_an_epoch_is_seen_before_it_is_sealed() -> None:
    assert {turn for (_, turn), then in TABLE.items() if then is P.RUNNING} == {T.SEALED}
    assert {phase for (phase, turn), _ in TABLE.items() if turn is T.SEALED} == {P.SEALING}


# ---- donation


def test_the_first_to_come_is_asked_and_the_others_wait() -> None:
    donation = Donation()
    actions = donation.offer(ANN, hello(ANN), 1.0)
    assert messages(actions) == [(ANN, "Donate")]
    assert isinstance(actions[0], Note)
    assert donation.offer(BOB, hello(BOB), 1.5) == []
    assert list(donation.waiting) == [ANN, BOB]


def test_who_only_watches_is_never_asked() -> None:
    donation = Donation()
    assert donation.offer(EVE, hello(EVE, watching=True), 1.0) == []
    assert (donation.donor, donation.waiting) == (None, {})


def test_a_donor_that_is_heard_keeps_its_office() -> None:
    donation = Donation()
    donation.offer(ANN, hello(ANN), 1.0)
    donation.offer(ANN, hello(ANN), 5.0)
    assert donation.judge_silence(10.9, 6.0) == []
    donation.fetch(ANN, LayoutOffer(digest="d", body=BODY), 10.9)
    assert donation.judge_silence(16.8, 6.0) == []
    assert donation.donor == ANN


def test_a_donor_that_dies_half_way_is_replaced_and_nothing_of_it_counts() -> None:
    donation = Donation()
    donation.offer(ANN, hello(ANN), 1.0)
    donation.offer(BOB, hello(BOB), 1.0)
    donation.digest, donation.numels, donation.shares = "ann's", (4, 4), (0.5, 0.5)
    donation.taken = {0}
    actions = donation.judge_silence(7.0, 6.0)
    assert messages(actions) == [(BOB, "Donate")]
    assert isinstance(actions[0], Note)
    assert (actions[0].what, actions[0].why) == ("donor ann is gone", "silent for 6.0 s")
    assert (donation.donor, donation.heard_at, list(donation.waiting)) == (BOB, 7.0, [BOB])
    assert (donation.digest, donation.numels, donation.shares, donation.taken) == ("", (), (), set())


def test_without_anybody_else_the_next_hello_is_asked() -> None:
    donation = Donation()
    donation.offer(ANN, hello(ANN), 1.0)
    assert messages(donation.judge_silence(7.0, 6.0)) == []
    assert donation.donor is None
    assert messages(donation.offer(BOB, hello(BOB), 8.0)) == [(BOB, "Donate")]


def test_only_the_donors_offers_are_fetched_and_each_fragment_once() -> None:
    donation = Donation()
    donation.offer(ANN, hello(ANN), 1.0)
    layout, first = LayoutOffer(digest="d", body=BODY), InitialOffer(fragment=0, body=BODY)
    assert donation.fetch(BOB, layout, 2.0) == []
    assert donation.fetch(ANN, layout, 2.0) == [Fetch(key=ANN, message=layout)]
    assert donation.fetch(ANN, first, 2.0) == [Fetch(key=ANN, message=first)]
    donation.taken.add(0)
    assert donation.fetch(ANN, first, 2.0) == []


def test_complete_means_the_layout_and_every_fragment() -> None:
    donation = Donation(taken={0, 1})
    assert not donation.complete, "no layout yet"
    assert not Donation().complete, "nor any fragment"
    donation.numels = (4, 4, 4)
    assert not donation.complete
    donation.taken.add(2)
    assert donation.complete


def test_asking_is_a_message_of_its_own() -> None:
    assert Send(key=ANN, message=Donate()) in Donation().offer(ANN, hello(ANN), 1.0)


def test_a_donor_of_which_something_was_lost_is_asked_once_more_from_the_beginning() -> None:
    """Else everybody would wait for ever for a layout that was offered once, on a bad day."""
    donation = Donation()
    donation.offer(ANN, hello(ANN), 1.0)
    layout, first = LayoutOffer(digest="d", body=BODY), InitialOffer(fragment=0, body=BODY)
    assert donation.fetch(ANN, first, 2.0) == [], "values without a layout are of no use"
    assert messages(donation.offer(ANN, hello(ANN), 3.0)) == [(ANN, "Donate")]
    donation.fetch(ANN, layout, 4.0)
    assert donation.offer(ANN, hello(ANN), 5.0) == [], "the layout is on its way"
    donation.numels = (4, 4)
    donation.fetch(ANN, first, 6.0)
    assert donation.offer(ANN, hello(ANN), 7.0) == [], "fragment 0 is on its way"
    donation.taken.add(0)
    assert messages(donation.offer(ANN, hello(ANN), 8.0)) == [(ANN, "Donate")], "fragment 1 was never offered"
    assert (donation.donor, donation.numels, donation.taken) == (ANN, (), set())
