"""What a relay bundles, and when; every contribution ends in one place, whatever comes when."""

import random

import pytest

from tests.core.samples import ANN, BOB, BODY, EVE, contribution
from zdiloco.core import bundling as b
from zdiloco.core.messages import Ack, Contribution, Refused
from zdiloco.units import MemberKey

WAIT_S, GIVE_UP_S, COMING_S, COST = 0.5, 2.0, 10.0, 1500
Machine = b.Bundling


@pytest.fixture
def machine() -> Machine:
    return b.Bundling(WAIT_S, GIVE_UP_S, COMING_S, lambda fragment: COST)


def ready(machine: Machine, key: MemberKey, now: float, fragment: int = 0, seq: int = 1) -> Contribution:
    """A contribution is here, sound, and awaited by the syncer."""
    message = contribution(fragment=fragment, seq=seq, body=BODY)
    machine.offered(key, message)
    assert machine.looked_at(key, message, sound=True) == []
    machine.asked(key, fragment, now)
    return message


def gathered(actions: list[b.BundlingAction]) -> list[tuple[int, list[str]]]:
    """Number and members of each bundle."""
    return [(one.number, [key.name for key, _ in one.members]) for one in actions if isinstance(one, b.Gather)]


def forwarded(actions: list[b.BundlingAction]) -> list[str]:
    return [action.place[0].name for action in actions if isinstance(action, b.Forward)]


def test_when_all_of_the_region_are_in_they_are_bundled_at_once(machine: Machine) -> None:
    for key in (BOB, ANN, EVE):
        ready(machine, key, 1.0)
    assert machine.deadline() == 1.0
    assert gathered(machine.turn(1.0)) == [(1, ["ann", "bob", "eve"])]
    assert machine.turn(1.0) == []


def test_those_that_are_in_wait_for_the_others_and_not_too_long(machine: Machine) -> None:
    machine.offered(EVE, contribution())
    for at, key in ((1.0, ANN), (1.4, BOB)):
        ready(machine, key, at)
        assert machine.turn(at) == []
    assert machine.deadline() == 1.0 + WAIT_S
    assert gathered(machine.turn(1.0 + WAIT_S)) == [(1, ["ann", "bob"])]
    machine.looked_at(EVE, contribution(), sound=True)
    machine.asked(EVE, 0, 1.6)
    assert forwarded(machine.turn(1.6)) == ["eve"], "nobody else is to come"


def test_who_has_declined_is_not_waited_for_until_it_contributes_again(machine: Machine) -> None:
    ready(machine, EVE, 0.0, seq=1)
    machine.answered(EVE, Ack(fragment=0, held=1, merged=0))
    machine.declined(EVE, 0)
    for key in (ANN, BOB):
        ready(machine, key, 1.0)
    assert gathered(machine.turn(1.0)) == [(1, ["ann", "bob"])]
    for key in (ANN, BOB):
        machine.answered(key, Ack(fragment=0, held=0, merged=1))
    ready(machine, EVE, 2.0, seq=2)
    ready(machine, ANN, 2.0, seq=2)
    assert machine.turn(2.0) == [], "bob may come"


def test_what_the_syncer_has_not_asked_for_is_in_no_bundle(machine: Machine) -> None:
    """It has no room there, or is not known there yet: a bundle with it would be refused whole."""
    for key in (ANN, BOB):
        ready(machine, key, 1.0)
    machine.offered(EVE, contribution())
    machine.looked_at(EVE, contribution(), sound=True)
    assert gathered(machine.turn(1.0 + WAIT_S)) == [(1, ["ann", "bob"])]


def test_one_alone_goes_up_as_it_is(machine: Machine) -> None:
    ready(machine, ANN, 1.0)
    assert forwarded(machine.turn(1.0)) == ["ann"]
    assert machine.deadline() is None


def test_what_does_not_pay_is_not_waited_for(machine: Machine) -> None:
    machine.cost = lambda fragment: 2 * BODY.nbytes
    machine.offered(BOB, contribution())
    ready(machine, ANN, 1.0)
    assert forwarded(machine.turn(1.0)) == ["ann"]
    ready(machine, BOB, 1.0)
    assert forwarded(machine.turn(1.0)) == ["bob"]


def test_what_is_not_sound_is_the_syncers_to_judge(machine: Machine) -> None:
    machine.offered(ANN, contribution())
    assert forwarded(machine.looked_at(ANN, contribution(), sound=False)) == ["ann"]
    machine.asked(ANN, 0, 1.0)
    assert machine.turn(9.0) == []


def test_a_bundle_that_is_refused_or_not_asked_for_goes_up_in_its_parts(machine: Machine) -> None:
    for key in (ANN, BOB):
        ready(machine, key, 1.0)
    machine.turn(1.0)
    actions = machine.failed(1)
    assert (forwarded(actions), actions[-1]) == (["ann", "bob"], b.Withdraw(number=1))
    assert machine.failed(1) == []
    for key in (ANN, BOB):
        ready(machine, key, 3.0, fragment=1)
    machine.turn(3.0)
    assert machine.deadline() == 3.0 + GIVE_UP_S
    assert forwarded(machine.turn(3.0 + GIVE_UP_S)) == ["ann", "bob"]


def test_what_the_syncer_asks_for_long_after_it_took_the_bundle_is_not_withheld(machine: Machine) -> None:
    """The word that the bundle has come to nothing was lost, with the connection that it was said on."""
    for key in (ANN, BOB):
        ready(machine, key, 1.0)
    machine.turn(1.0)
    machine.taken(1, 2.0)
    assert machine.turn(50.0) == [], "it may take its time"
    assert machine.asked(ANN, 0, 2.0 + GIVE_UP_S - 0.1) == [], "a word from before the bundle was taken"
    assert forwarded(machine.asked(ANN, 0, 2.0 + GIVE_UP_S)) == ["ann", "bob"]


@pytest.mark.parametrize("answer", [
    Ack(fragment=0, held=1, merged=0), Ack(fragment=0, held=0, merged=1), Ack(fragment=0, held=2, merged=1),
    Refused(fragment=0, seq=1, reason="after", text=""),
])  # fmt: skip
def test_only_the_syncers_word_frees_the_bytes(machine: Machine, answer: Ack | Refused) -> None:
    for key in (ANN, BOB):
        ready(machine, key, 1.0)
    machine.turn(1.0)
    machine.taken(1, 1.0)
    assert machine.answered(ANN, Ack(fragment=0, held=0, merged=0)) == []
    assert machine.answered(ANN, Ack(fragment=1, held=1, merged=0)) == []
    assert machine.answered(ANN, answer) == [b.Release(place=(ANN, 0))]
    assert machine.awaits(1), "bob is not answered yet"
    assert machine.answered(BOB, answer) == [b.Release(place=(BOB, 0)), b.Withdraw(number=1)]
    assert machine.entries == {}


def test_a_newer_contribution_takes_the_place_of_an_older_one(machine: Machine) -> None:
    ready(machine, ANN, 1.0)
    assert machine.offered(ANN, contribution(seq=2)) == [b.Release(place=(ANN, 0))]
    assert machine.offered(ANN, contribution(seq=2)) == [], "said again"
    assert machine.looked_at(ANN, contribution(seq=1), sound=True) == [], "too late"
    assert machine.entries[ANN, 0].stage is b.Stage.COMING


def test_who_is_gone_is_waited_for_no_more(machine: Machine) -> None:
    machine.offered(EVE, contribution())
    for key in (ANN, BOB):
        ready(machine, key, 1.0)
    assert machine.gone(EVE) == [b.Release(place=(EVE, 0))]
    assert gathered(machine.turn(1.0)) == [(1, ["ann", "bob"])]


def test_another_epoch_is_told_nothing_of_a_bundle_of_the_last_one(machine: Machine) -> None:
    for key in (ANN, BOB):
        ready(machine, key, 1.0)
        ready(machine, key, 1.0, fragment=1)
    machine.turn(1.0)
    assert sorted(forwarded(machine.reset())) == ["ann", "ann", "bob", "bob"]
    ready(machine, EVE, 2.0)
    assert machine.reset() == []
    assert machine.turn(9.0) == [], "the new one has not asked for it"


def test_fragments_do_not_wait_for_each_other(machine: Machine) -> None:
    for key in (ANN, BOB):
        ready(machine, key, 1.0, fragment=3)
    ready(machine, ANN, 1.0, fragment=4)
    gathers = [action for action in machine.turn(1.0) if isinstance(action, b.Gather)]
    assert [(gather.fragment, gather.number) for gather in gathers] == [(3, 1)]


def test_who_was_waited_for_in_vain_is_not_waited_for_until_it_contributes_again(machine: Machine) -> None:
    """One that has died, or is far slower, does not delay every round of its region."""
    for key in (ANN, BOB, EVE):
        ready(machine, key, 1.0)
    machine.turn(1.0)
    for key in (ANN, BOB, EVE):
        machine.answered(key, Ack(fragment=0, held=1, merged=0))
    for key in (ANN, BOB):
        ready(machine, key, 2.0, seq=2)
    assert machine.turn(2.0) == []
    assert gathered(machine.turn(2.0 + WAIT_S)) == [(2, ["ann", "bob"])]
    for key in (ANN, BOB):
        machine.answered(key, Ack(fragment=0, held=2, merged=0))
        ready(machine, key, 4.0, seq=3)
    assert gathered(machine.turn(4.0)) == [(3, ["ann", "bob"])]
    for key in (ANN, BOB):
        machine.answered(key, Ack(fragment=0, held=3, merged=0))
        ready(machine, key, 5.0, seq=4)
    machine.offered(EVE, contribution(fragment=0, seq=2, body=BODY))
    assert machine.turn(5.0) == []


def test_what_takes_long_to_come_is_left_to_syncer_and_learner(machine: Machine) -> None:
    """The syncer would give up what it sees nothing of, however much of it is here."""
    slow = contribution(fragment=0, seq=1, body=BODY)
    machine.offered(ANN, slow)
    assert machine.asked(ANN, 0, 1.0) == machine.asked(ANN, 0, 0.9 + COMING_S) == []
    assert machine.asked(ANN, 0, 1.0 + COMING_S) == [b.Release(place=(ANN, 0))]
    assert machine.passes(ANN, slow), "though it is offered again"
    assert machine.entries == {}
    ready(machine, BOB, 12.0)
    assert forwarded(machine.turn(12.0)) == ["bob"], "nobody waits for it"
    assert not machine.passes(ANN, contribution(fragment=0, seq=2, body=BODY))
    machine.offered(ANN, contribution(fragment=0, seq=2, body=BODY))
    assert not machine.passes(ANN, slow)


def test_of_a_crowd_as_many_are_bundled_as_a_word_can_name(machine: Machine) -> None:
    crowd = [MemberKey(f"m{index:03}", 1) for index in range(60)]
    for key in crowd:
        ready(machine, key, 1.0)
    assert [len(names) for _, names in gathered(machine.turn(1.0)) + gathered(machine.turn(1.0))] == [40, 20]


def test_in_any_order_of_events_nothing_is_twice_on_its_way_and_nothing_is_left() -> None:
    """Random histories: what is released or withdrawn was here, and when all is answered nothing is kept."""
    for seed in range(40):
        _history(seed)


class History:
    """One machine, and what its actions have left: bytes that are here, and bundles that are wanted."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now = random.Random(seed), 0.0
        self.machine = b.Bundling(WAIT_S, GIVE_UP_S, COMING_S, lambda fragment: COST)
        self.here, self.bundles = set[b.Place](), set[int]()
        self.seqs: dict[b.Place, int] = {}

    def follow(self, actions: list[b.BundlingAction]) -> None:
        for action in actions:
            if isinstance(action, b.Release):
                self.here.remove(action.place)
            elif isinstance(action, b.Withdraw):
                self.bundles.remove(action.number)
            elif isinstance(action, b.Gather):
                self.bundles.add(action.number)
                assert all((key, action.fragment) in self.here for key, _ in action.members)
            else:
                assert action.place in self.here

    def happen(self) -> list[b.BundlingAction]:
        """One event at random."""
        rng, machine = self.rng, self.machine
        key, fragment = place = (rng.choice([ANN, BOB, EVE]), rng.randrange(2))
        what, known = rng.randrange(9), machine.entries.get(place)
        if what == 0 or known is None:
            self.seqs[place] = self.seqs.get(place, 0) + 1
            actions = machine.offered(key, contribution(fragment=fragment, seq=self.seqs[place]))
            self.follow(actions)  # what was here before goes first
            self.here.add(place)
            return []
        if what <= 2:
            return machine.looked_at(key, known.message, sound=rng.random() < 0.8)
        if what <= 4:
            return machine.asked(key, fragment, self.now)
        if what == 5:
            return machine.answered(key, Ack(fragment=fragment, held=known.message.seq, merged=0))
        if what == 6:
            number = rng.choice([*sorted(self.bundles), 999])
            return machine.failed(number) if rng.random() < 0.5 else machine.taken(number, self.now) or []
        if what == 7:
            return machine.reset() if rng.random() < 0.2 else machine.lost(key, fragment)
        return machine.declined(key, fragment) or []


def _history(seed: int) -> None:
    history = History(seed)
    for _ in range(200):
        history.now += history.rng.random() * 0.3
        history.follow(history.happen())
        history.follow(history.machine.turn(history.now))
        due = history.machine.deadline()
        assert due is None or due > history.now, "what is due is done"
    for key in (ANN, BOB, EVE):
        history.follow(history.machine.gone(key))
    left = (history.here, history.bundles, history.machine.entries, history.machine.deadline())
    assert left == (set(), set(), {}, None)
