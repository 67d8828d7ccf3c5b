"""The progress protocol: both sides alone, and against each other in small histories."""

import pytest

from tests.core.samples import ANN, BOB, EPOCH, NEXT_EPOCH, contribution, held
from zdiloco.core.progress import Adoption, Cut, Fate, Intake, Kept, LearnerProgress, Refusal, Tally, add_record
from zdiloco.units import NO_STAMP, Epoch, MemberKey, Merged, Stamp


def at(version: int, epoch: Epoch = EPOCH) -> Stamp:
    return Stamp(epoch, version)


def learner(*steps: int) -> LearnerProgress:
    """A learner that has adopted version 0 and then made these steps, by their tokens."""
    progress = LearnerProgress(seen=at(0))
    for tokens in steps:
        progress.step(tokens)
    return progress


def follow(progress: LearnerProgress, stamp: Stamp, mine: int, mine_tokens: int) -> Adoption:
    """Adopt a state in which `mine` is my newest merged seq and `mine_tokens` the sum of my tokens."""
    adoption = progress.judge(stamp, mine, mine_tokens)
    progress.adopt(adoption)
    return adoption


def balanced(progress: LearnerProgress) -> bool:
    tally = progress.tally
    return tally.trained == tally.merged + progress.tokens + tally.dropped + tally.lost


# ---- the syncer's side: what is taken


def merged_intake(seq: int = 5) -> Intake:
    return Intake([Merged(*ANN, seq, 10, 100)])


def test_a_contribution_that_starts_where_the_merged_work_ends_is_taken() -> None:
    assert merged_intake().judge(ANN, contribution(7, 5), EPOCH) is None
    assert Intake().judge(ANN, contribution(1, 0), EPOCH) is None
    assert merged_intake().judge(BOB, contribution(1, 0), EPOCH) is None, "another's work says nothing"


@pytest.mark.parametrize("epoch", [Epoch(0, 500), Epoch(1, 499), Epoch(1, 501), NEXT_EPOCH])
def test_any_other_epoch_is_refused(epoch: Epoch) -> None:
    assert merged_intake().judge(ANN, contribution(7, 5, epoch), EPOCH) is Refusal.EPOCH


@pytest.mark.parametrize("after", [0, 4, 6])
def test_two_overlapping_pieces_are_never_both_taken(after: int) -> None:
    assert merged_intake().judge(ANN, contribution(7, after), EPOCH) is Refusal.AFTER


def test_another_version_of_the_same_epoch_is_taken_however_old() -> None:
    late = contribution(7, 5, stamp=at(0), version=1)
    assert merged_intake().judge(ANN, late, EPOCH) is None


def test_a_seq_that_is_not_newer_than_what_it_follows_is_refused() -> None:
    assert merged_intake().judge(ANN, contribution(5, 5), EPOCH) is Refusal.SEQ
    assert merged_intake().judge(ANN, contribution(4, 5), EPOCH) is Refusal.SEQ


def test_a_newer_one_replaces_what_is_held_and_an_older_one_is_refused() -> None:
    intake = merged_intake()
    old, new = (held(ANN, contribution(seq, 5)) for seq in (7, 8))
    assert intake.hold(old) is None
    assert intake.judge(ANN, new.message, EPOCH) is None
    assert intake.hold(new) is old
    assert intake.judge(ANN, old.message, EPOCH) is Refusal.SEQ
    assert intake.judge(ANN, new.message, EPOCH) is None, "the same again"
    assert intake.hold(new) is None, "which replaces nothing"
    assert (intake.held_seq(ANN), intake.merged_seq(ANN), intake.held_seq(BOB)) == (8, 5, 0)


def test_another_incarnation_of_the_name_has_a_map_entry_of_its_own() -> None:
    young = MemberKey(ANN.name, 99)
    assert merged_intake().judge(young, contribution(1, 0), EPOCH) is None
    assert merged_intake().judge(young, contribution(6, 5), EPOCH) is Refusal.AFTER


def test_a_close_takes_everything_in_order_and_counts_it() -> None:
    intake = merged_intake()
    intake.hold(held(BOB, contribution(1, 0, steps=3, tokens=30)))
    intake.hold(held(ANN, contribution(8, 5, steps=4, tokens=40)))
    taken, record = intake.close()
    assert [one.id.key for one in taken] == [ANN, BOB]
    assert record == (Merged(*ANN, 8, 4, 40), Merged(*BOB, 1, 3, 30))
    assert intake.map == {ANN: Merged(*ANN, 8, 14, 140), BOB: Merged(*BOB, 1, 3, 30)}
    assert intake.held == {}
    assert intake.judge(ANN, contribution(8, 5), EPOCH) is Refusal.AFTER, "not twice"


def test_maps_add_up_and_stay_as_they_were() -> None:
    before = {ANN: Merged(*ANN, 5, 10, 100)}
    after = add_record(before, [Merged(*ANN, 6, 1, 9), Merged(*BOB, 1, 2, 20)])
    assert after == {ANN: Merged(*ANN, 6, 11, 109), BOB: Merged(*BOB, 1, 2, 20)}
    assert before == {ANN: Merged(*ANN, 5, 10, 100)}


# ---- the learner's side: what an update means


def test_a_cut_is_all_that_is_unmerged_and_takes_nothing_away() -> None:
    progress = learner(10, 20)
    assert progress.cut() == Cut(seq=1, steps=2, tokens=30)
    progress.step(5)
    assert progress.cut() == Cut(seq=2, steps=3, tokens=35), "not merged yet: it is in the next one too"
    assert (progress.steps, progress.tokens, progress.tally.trained) == (3, 35, 35)


@pytest.mark.parametrize("stamp", [at(0), at(-1), Stamp(Epoch(0, 999), 77)])
def test_what_is_not_newer_is_ignored(stamp: Stamp) -> None:
    progress = learner(10)
    progress.cut()
    assert progress.judge(stamp, 1, 10).fate is Fate.OLD


def test_anything_is_newer_than_nothing() -> None:
    assert LearnerProgress(seen=NO_STAMP).judge(Stamp(EPOCH, 0), 0, 0).fate is Fate.CARRIED


def test_others_work_is_carried_over_mine() -> None:
    progress = learner(10, 20)
    progress.cut()
    adoption = follow(progress, at(1), 0, 0)
    assert (adoption.fate, adoption.subtract, adoption.restore) == (Fate.CARRIED, 0, ())
    assert (progress.seen, progress.tokens, list(progress.sent)) == (at(1), 30, [1]), "1 may still be merged"


def test_what_is_merged_is_subtracted_and_the_rest_goes_on() -> None:
    progress = learner(10, 20)
    progress.cut()
    progress.step(5)
    adoption = follow(progress, at(1), 1, 30)
    assert (adoption.fate, adoption.subtract) == (Fate.MERGED, 1)
    assert (progress.steps, progress.tokens, progress.after) == (1, 5, 1)
    assert progress.tally == Tally(trained=35, merged=30)
    assert progress.kept == {1: Kept(cut=Cut(seq=1, steps=2, tokens=30), at=at(1))}


def test_of_two_cuts_the_merged_one_counts_and_the_other_is_forgotten() -> None:
    progress = learner(10)
    progress.cut()
    progress.step(20)
    progress.cut()
    adoption = progress.judge(at(1), 1, 10)
    assert progress.adopt(adoption) == (2,), "2 follows what was before 1: it will be refused"
    assert (progress.tokens, progress.sent) == (20, {})
    assert progress.cut().seq == 3, "numbers never come again"


def test_a_new_epoch_forgets_what_was_under_way() -> None:
    progress = learner(10)
    progress.cut()
    adoption = progress.judge(at(0, NEXT_EPOCH), 0, 0)
    assert adoption.fate is Fate.CARRIED
    assert progress.adopt(adoption) == (1,)
    assert (progress.sent, progress.tokens) == ({}, 10)


def test_work_of_a_branch_that_died_is_taken_back() -> None:
    progress = learner(10)
    progress.cut()
    follow(progress, at(1), 1, 10)
    progress.step(7)
    progress.cut()
    follow(progress, at(2), 2, 17)
    progress.step(5)
    adoption = progress.judge(at(1, NEXT_EPOCH), 1, 10)
    assert (adoption.fate, adoption.subtract, adoption.restore) == (Fate.ROLLED_BACK, 0, (2,))
    assert progress.adopt(adoption) == (2,)
    assert (progress.after, progress.steps, progress.tokens) == (1, 2, 12)
    assert list(progress.kept) == [1], "what the new branch holds is kept on"
    assert progress.tally == Tally(trained=22, merged=10)
    assert balanced(progress)


def test_everything_is_taken_back_in_order() -> None:
    progress = learner()
    for version in (1, 2, 3):
        progress.step(version)
        progress.cut()
        follow(progress, at(version), version, sum(range(version + 1)))
    assert progress.judge(at(0, NEXT_EPOCH), 0, 0).restore == (1, 2, 3)


def test_a_merge_whose_bytes_are_gone_drops_u_rather_than_count_twice() -> None:
    progress = learner(10, 20)
    progress.cut()
    progress.sent.clear()
    progress.step(5)
    adoption = follow(progress, at(1), 1, 30)
    assert (adoption.fate, adoption.subtract) == (Fate.GIVEN_UP, 0)
    assert (progress.after, progress.steps, progress.tokens) == (1, 0, 0)
    assert progress.tally == Tally(trained=35, merged=30, dropped=5)


def test_a_disk_that_forgot_what_it_called_stable_is_a_loss_and_said_so() -> None:
    progress = learner(10)
    progress.cut()
    follow(progress, at(1), 1, 10)
    progress.on_stable(at(1))
    adoption = follow(progress, at(0, NEXT_EPOCH), 0, 0)
    assert (adoption.fate, adoption.restore) == (Fate.ROLLED_BACK, ())
    assert progress.tally == Tally(trained=10, lost=10)
    assert balanced(progress)


# ---- dropping


def test_dropping_empties_u_and_voids_what_is_under_way() -> None:
    progress = learner(10, 20)
    progress.cut()
    progress.step(5)
    assert progress.drop() == 35
    assert (progress.steps, progress.tokens) == (0, 0)
    assert progress.sent == {1: Cut(seq=1, steps=2, tokens=30, void=True)}
    assert progress.tally == Tally(trained=35, dropped=35)


def test_a_dropped_one_that_is_merged_all_the_same_is_not_subtracted_again() -> None:
    progress = learner(10, 20)
    progress.cut()
    progress.drop()
    progress.step(5)
    adoption = follow(progress, at(1), 1, 30)
    assert (adoption.fate, adoption.subtract) == (Fate.MERGED, 0)
    assert (progress.steps, progress.tokens, progress.after) == (1, 5, 1)
    assert progress.tally == Tally(trained=35, merged=30, dropped=0)
    assert balanced(progress)


def test_a_dropped_one_that_was_merged_and_is_rolled_back_is_dropped_again() -> None:
    progress = learner(10)
    progress.cut()
    progress.drop()
    follow(progress, at(1), 1, 10)
    adoption = follow(progress, at(0, NEXT_EPOCH), 0, 0)
    assert (adoption.fate, adoption.restore) == (Fate.ROLLED_BACK, ())
    assert (progress.tokens, progress.kept) == (0, {})
    assert progress.tally == Tally(trained=10, dropped=10)


def test_what_was_merged_before_a_drop_is_still_taken_back_after_it() -> None:
    progress = learner(10)
    progress.cut()
    follow(progress, at(1), 1, 10)
    progress.step(5)
    progress.drop()
    assert follow(progress, at(0, NEXT_EPOCH), 0, 0).restore == (1,)
    assert (progress.tokens, progress.tally) == (10, Tally(trained=15, dropped=5))


# ---- kept until stable


def two_merged() -> LearnerProgress:
    progress = learner()
    for version in (1, 2):
        progress.step(10)
        progress.cut()
        follow(progress, at(version), version, 10 * version)
    return progress


def test_bytes_are_kept_until_the_version_that_holds_them_is_stable() -> None:
    progress = two_merged()
    assert progress.on_stable(at(0)) == ()
    assert progress.on_stable(at(1)) == (1,)
    assert progress.on_stable(at(1)) == ()
    assert list(progress.kept) == [2]
    assert progress.on_stable(at(2)) == (2,)


def test_only_the_syncer_whose_state_is_adopted_may_call_it_stable() -> None:
    progress = two_merged()
    assert progress.on_stable(at(9, NEXT_EPOCH)) == ()
    assert progress.on_stable(at(9, Epoch(0, 1))) == ()
    assert list(progress.kept) == [1, 2]


def test_a_state_of_a_later_epoch_that_is_stable_holds_all_of_the_former() -> None:
    progress = two_merged()
    follow(progress, at(2, NEXT_EPOCH), 2, 20)
    progress.step(5)
    progress.cut()
    follow(progress, at(3, NEXT_EPOCH), 3, 25)
    assert progress.on_stable(at(2, NEXT_EPOCH)) == (1, 2)
    assert list(progress.kept) == [3]


# ---- both sides against each other


class Pair:
    """One learner and its syncer; `send` gives whether it was taken."""

    def __init__(self, epoch: Epoch = EPOCH) -> None:
        self.progress, self.intake, self.stamp = learner(), Intake(), at(0, epoch)

    def work(self, tokens: int) -> None:
        self.progress.step(tokens)

    def cut(self) -> dict[str, int]:
        made = self.progress.cut()
        return {"seq": made.seq, "after": self.progress.after, "steps": made.steps, "tokens": made.tokens}

    def send(self, fields: dict[str, int]) -> Refusal | None:
        message = contribution(epoch=self.progress.seen.epoch, **fields)
        why = self.intake.judge(ANN, message, self.stamp.epoch)
        if why is None:
            self.intake.hold(held(ANN, message))
        return why

    def close(self) -> Merged:
        self.intake.close()
        self.stamp = self.stamp._replace(version=self.stamp.version + 1)
        return self.intake.map.get(ANN, Merged(*ANN, 0, 0, 0))

    def adopt(self, mine: Merged) -> Fate:
        return follow(self.progress, self.stamp, mine.seq, mine.tokens).fate


def test_steps_made_during_the_flight_are_merged_by_the_next() -> None:
    pair = Pair()
    pair.work(10)
    assert pair.send(pair.cut()) is None
    pair.work(20)
    assert pair.adopt(pair.close()) is Fate.MERGED
    assert pair.send(pair.cut()) is None
    assert pair.close().tokens == 30


def test_a_late_one_is_held_and_merged_in_the_next_round() -> None:
    pair = Pair()
    pair.work(10)
    late = pair.cut()
    assert pair.adopt(pair.close()) is Fate.CARRIED
    assert pair.send(late) is None
    assert pair.adopt(pair.close()) is Fate.MERGED
    assert pair.progress.tokens == 0


def test_a_lost_update_is_made_up_for_by_the_next() -> None:
    pair = Pair()
    pair.work(10)
    pair.send(pair.cut())
    pair.close()
    pair.work(20)
    assert pair.send(pair.cut()) is Refusal.AFTER, "it overlaps what is merged"
    assert pair.adopt(pair.close()) is Fate.MERGED
    assert pair.progress.tokens == 20
    assert pair.send(pair.cut()) is None
    assert pair.close().tokens == 30


def test_a_contribution_that_is_repeated_is_merged_once() -> None:
    pair = Pair()
    pair.work(10)
    same = pair.cut()
    assert [pair.send(same), pair.send(same)] == [None, None]
    assert pair.close().tokens == 10
    assert pair.send(same) is Refusal.AFTER
    assert pair.close().tokens == 10


def test_a_successor_without_the_last_version_merges_the_work_again_once() -> None:
    pair = Pair()
    pair.work(10)
    pair.send(pair.cut())
    pair.adopt(pair.close())
    pair.work(5)
    pair.intake, pair.stamp = Intake(), at(0, NEXT_EPOCH)
    assert pair.send(pair.cut()) is Refusal.EPOCH
    assert pair.adopt(Merged(*ANN, 0, 0, 0)) is Fate.ROLLED_BACK
    assert pair.send(pair.cut()) is None
    assert pair.adopt(pair.close()) is Fate.MERGED
    assert pair.intake.map[ANN].tokens == 15 == pair.progress.tally.merged
    assert pair.progress.tokens == 0
