"""What is kept member by member says the same as sums over everybody: at any moment, whatever was said before."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tests.core.chatter import SyncerChatter
from tests.core.dumb_desk import Beside
from tests.core.samples import ANN, BOB, EVE
from zdiloco.core.roll import Roll


class Watched(SyncerChatter):
    """A syncer among learners that say anything, looked at after every event."""

    beside: Beside

    def turn(self) -> None:
        super().turn()
        if not hasattr(self, "beside") or self.beside.machine is not self.machine:
            seen = self.beside.seen if hasattr(self, "beside") else {}
            self.beside = Beside(self.machine)
            self.beside.seen = seen
        self.beside.look(self.now)


def test_whatever_peers_say_the_sums_agree() -> None:
    seen: dict[str, int] = {}
    for seed in range(40):
        chatter = Watched(seed)
        for _ in range(250):
            chatter.turn()
        for what, times in chatter.beside.seen.items():
            seen[what] = seen.get(what, 0) + times
    for what in ("absent", "held", "fresh", "in quarantine", "in quarantine, and counted"):
        assert seen[what] > 20, seen


def test_a_member_is_where_it_was_put_last() -> None:
    roll = Roll()
    roll.open({ANN, BOB})
    roll.place(ANN, held=True, fresh=True, absent=False)
    assert (roll.held, roll.fresh, roll.absent) == ({ANN}, {ANN}, {BOB})
    roll.place(ANN, held=False, fresh=False, absent=True)  # sent back
    assert (roll.held, roll.fresh, roll.absent) == (set(), set(), {ANN, BOB})
    roll.close()
    assert not roll.held | roll.fresh | roll.absent


def test_the_slowest_is_told_only_in_the_grace_window() -> None:
    paces = {ANN: 1.0, BOB: 3.0, EVE: None}
    roll = Roll()
    roll.open({ANN, BOB, EVE})
    assert roll.slowest_s() is None
    roll.begin_grace(paces.get)
    assert roll.slowest_s() == 3.0
    paces[BOB] = 0.5
    roll.paced(BOB)
    assert roll.slowest_s() == 1.0
    roll.place(ANN, held=True, fresh=True, absent=False)
    assert roll.slowest_s() == 0.5
    roll.end_grace()
    assert roll.slowest_s() is None


keys = st.sampled_from([ANN, BOB, EVE])


@given(st.lists(st.tuples(keys, st.booleans(), st.sampled_from([None, 0.25, 0.5, 1.0, 2.0])), max_size=200))
def test_the_slowest_is_found_whoever_comes_and_goes(moves: list[tuple]) -> None:
    """And what is remembered of paces of long ago is bounded."""
    paces: dict = {}
    roll = Roll()
    roll.open({ANN})
    roll.begin_grace(paces.get)
    for key, absent, pace in moves:
        paces[key] = pace
        roll.paced(key)
        roll.place(key, held=not absent, fresh=False, absent=absent)
        expected = max((paces.get(one) or 0.0 for one in roll.absent), default=0.0)
        assert (roll.slowest_s() or 0.0) == expected
        assert len(roll._slow) <= 64 + 2 * 3 + 1
    assert math.isfinite(roll.slowest_s() or 0.0)
