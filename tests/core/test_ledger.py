"""The ledger: whatever happened, and whoever has not heard of it yet, the terms sum to what was trained."""

import random

import pytest

from tests.core.samples import ANN, EPOCH, contribution, held
from zdiloco.core.ledger import CutRow, Fates, FragmentRow, row_of, settle, total, weigh
from zdiloco.core.progress import Fate, Intake, LearnerProgress
from zdiloco.units import Epoch, Merged, Stamp


def row(**other: object) -> FragmentRow:
    fields = {"unmerged": 50, "dropped": 5, "lost": 0, "after": 1, "sent": (), "kept": ()}
    return FragmentRow(**{**fields, **other})


def test_a_living_learner_that_knows_everything() -> None:
    found = settle(155, row(), 1, 100, "living")
    assert found == Fates(trained=155, merged=100, unmerged=50, lost=0, dropped=5, left=0)
    assert found.gap == 0


def test_what_a_dead_process_held_is_lost_and_what_a_leaving_one_held_is_left() -> None:
    assert settle(155, row(), 1, 100, "dead") == Fates(155, 100, 0, 50, 5, 0)
    assert settle(155, row(), 1, 100, "left") == Fates(155, 100, 0, 0, 5, 50)
    assert settle(155, row(lost=3), 1, 97, "dead") == Fates(155, 97, 0, 53, 5, 0)


def test_tokens_merged_before_the_learner_heard_of_it_are_no_more_unmerged() -> None:
    told = row(sent=(CutRow(2, 20, False), CutRow(3, 50, False)))
    assert settle(155, told, 2, 120, "living") == Fates(155, 120, 30, 0, 5, 0)
    assert settle(155, told, 3, 150, "dead") == Fates(155, 150, 0, 0, 5, 0)


def test_dropped_tokens_that_were_merged_all_the_same_move_to_merged() -> None:
    told = row(dropped=25, unmerged=30, sent=(CutRow(2, 20, True),))
    assert settle(155, told, 2, 120, "living") == Fates(155, 120, 30, 0, 5, 0)


def test_a_merge_whose_cut_is_forgotten_ends_as_the_learner_will_end_it() -> None:
    """It gives u up when it hears of that: 20 of 50 are merged, and it cannot tell which."""
    told = row(sent=(CutRow(4, 50, False),))
    assert settle(155, told, 2, 120, "living") == Fates(155, 120, 0, 0, 35, 0)
    progress = LearnerProgress(seen=Stamp(EPOCH, 0), after=1, tokens=50)
    progress.tally.trained, progress.tally.merged, progress.tally.dropped = 155, 100, 5
    progress.adopt(progress.judge(Stamp(EPOCH, 1), 2, 120))
    assert (progress.tokens, progress.tally.dropped) == (0, 35)


def test_a_rolled_back_merge_goes_back_to_unmerged_or_dropped() -> None:
    kept = row(kept=(CutRow(1, 100, False),))
    assert settle(155, kept, 1, 100, "living").unmerged == 50
    assert settle(155, kept, 0, 0, "living") == Fates(155, 0, 150, 0, 5, 0)
    void = row(kept=(CutRow(1, 100, True),))
    assert settle(155, void, 0, 0, "living") == Fates(155, 0, 50, 0, 105, 0)


def test_a_doubled_or_lost_token_shows_as_a_gap() -> None:
    assert settle(155, row(), 1, 101, "living").gap == -1
    assert settle(156, row(), 1, 100, "living").gap == 1


def test_each_term_is_in_the_gap() -> None:
    for term in ("merged", "unmerged", "lost", "dropped", "left"):
        assert Fates(**{**dict.fromkeys(Fates._fields, 0), "trained": 7, term: 7}).gap == 0, term


def test_fragments_are_summed_by_their_share() -> None:
    found = weigh([Fates(100, 80, 20, 0, 0, 0), Fates(100, 40, 0, 40, 10, 10)], [0.75, 0.25])
    assert found == Fates(100, 70, 15, 10, 2.5, 2.5)
    with pytest.raises(ValueError, match="zip"):
        weigh([Fates(1, 1, 0, 0, 0, 0)], [0.5, 0.5])


def test_processes_are_summed_plainly() -> None:
    assert total([Fates(1, 2, 3, 4, 5, 6), Fates(10, 20, 30, 40, 50, 60)]) == Fates(11, 22, 33, 44, 55, 66)
    assert total([]) == Fates(0, 0, 0, 0, 0, 0)


def test_a_row_holds_what_is_open_and_what_is_kept() -> None:
    progress = LearnerProgress(seen=Stamp(EPOCH, 0))
    progress.step(10)
    progress.cut()
    progress.adopt(progress.judge(Stamp(EPOCH, 1), 1, 10))
    progress.step(7)
    progress.cut()
    progress.drop()
    progress.step(5)
    expected = FragmentRow(
        unmerged=5, dropped=7, lost=0, after=1, sent=(CutRow(2, 7, True),), kept=(CutRow(1, 10, False),)
    )
    assert row_of(progress) == expected


class Story:
    """One learner, and syncers that crash and come back from their disk, with whatever the learner hands back.

    Only the counts are real; after every event the books must balance. A forgetful learner keeps the bytes of its
    newest two cuts only; then the syncer does not crash, or a merge that nobody can take back would be lost with it.
    """

    def __init__(self, seed: int, forgetful: bool = False) -> None:
        self.forgetful = forgetful
        self.rng = random.Random(seed)
        self.progress = LearnerProgress(seen=Stamp(EPOCH, 0))
        self.stamp, self.intake = Stamp(EPOCH, 0), Intake()
        self.published = self.disk = (self.stamp, Merged(*ANN, 0, 0, 0))
        self.adopted = self.published
        self.under_way: list[tuple[int, int, int, int, Epoch]] = []
        self.fates: list[Fate] = []

    def turn(self) -> None:
        what = self.rng.choices(
            [self.step, self.cut, self.arrive, self.close, self.adopt, self.save, self.drop, self.crash],
            [30, 12, 12, 10, 10, 8, 2, 0 if self.forgetful else 2],
        )[0]
        what()
        merged = self.intake.map.get(ANN, self.published[1])
        for state in ("living", "left", "dead"):
            told = settle(self.progress.tally.trained, row_of(self.progress), merged.seq, merged.tokens, state)
            assert told.gap == 0, (what.__name__, told)
            assert min(told) >= 0, (what.__name__, told)

    def step(self) -> None:
        self.progress.step(self.rng.randint(1, 9))

    def cut(self) -> None:
        made, seen = self.progress.cut(), self.progress.seen
        self.under_way.append((made.seq, self.progress.after, made.steps, made.tokens, seen.epoch))
        for seq in sorted(self.progress.sent)[:-2] if self.forgetful else ():
            del self.progress.sent[seq]

    def arrive(self) -> None:
        if self.under_way:
            seq, after, steps, tokens, epoch = self.under_way.pop(self.rng.randrange(len(self.under_way)))
            message = contribution(seq, after, epoch, steps=steps, tokens=tokens)
            if self.intake.judge(ANN, message, self.stamp.epoch) is None:
                self.intake.hold(held(ANN, message))

    def close(self) -> None:
        self.intake.close()
        self.stamp = self.stamp._replace(version=self.stamp.version + 1)
        self.published = (self.stamp, self.intake.map.get(ANN, self.published[1]))

    def adopt(self) -> None:
        stamp, mine = self.published
        adoption = self.progress.judge(stamp, mine.seq, mine.tokens)
        self.fates.append(adoption.fate)
        if adoption.fate is not Fate.OLD:
            self.progress.adopt(adoption)
            self.adopted = self.published

    def save(self) -> None:
        self.disk = self.published
        self.progress.on_stable(self.stamp)

    def drop(self) -> None:
        self.progress.drop()

    def crash(self) -> None:
        """A successor: the newer of the disk and, if it can be reached, what the learner has adopted."""
        reached = [self.adopted] if self.rng.random() < 0.5 else []
        stamp, mine = max([self.disk, *reached])
        self.stamp = Stamp(Epoch(self.stamp.epoch.counter + 1, 0), stamp.version)
        self.intake = Intake([mine] if mine.seq else [])
        self.published = self.disk = (self.stamp, mine)


@pytest.mark.parametrize("forgetful", [False, True], ids=["with crashes", "forgetful"])
@pytest.mark.parametrize("seed", range(25))
def test_the_books_balance_after_every_event_of_any_history(seed: int, forgetful: bool) -> None:
    story = Story(seed, forgetful)
    for _ in range(300):
        story.turn()


def test_the_histories_hold_what_they_are_for() -> None:
    """Every fate happens, or the test above would show little."""
    seen: set[Fate] = set()
    for seed in range(10):
        for story in (Story(seed), Story(seed, forgetful=True)):
            for _ in range(300):
                story.turn()
            seen |= set(story.fates)
    assert seen == set(Fate)
