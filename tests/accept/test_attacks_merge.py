"""Attacks of docs/attacks.md on what is merged, by one that is let in and sends contributions."""

from dataclasses import replace

import pytest
import torch

from tests.accept.attackers import CHUNK, Member
from tests.accept.siege import Siege
from tests.accept.stage import SLOW_MACHINE_S
from zdiloco.core import messages as w
from zdiloco.core.body import Body
from zdiloco.node.sockets import Road
from zdiloco.units import NO_EPOCH, Epoch, MemberKey, Stamp
from zdiloco.wire.encoding import encode
from zdiloco.wire.transfer import Credit, Gone, make_body

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]
HIGH = 2**53


def refused(member: Member, contribution: w.Contribution) -> str:
    said = member.offered(contribution)
    assert isinstance(said, w.Refused), said
    return said.reason


def test_values_that_are_no_numbers(siege: Siege) -> None:
    """M-1: NaN, and infinity: fetched, looked at, refused; its name is in quarantine."""
    with siege.attacked("M-1"):
        member = Member(siege)
        member.trains()
        numel = siege.layout.numels[0]
        for seq, value in enumerate((float("nan"), float("inf")), 1):
            assert refused(member, member.offer(seq, torch.full((numel,), value).numpy().tobytes())) == "non_finite"
        siege.until(lambda: siege.stage.member(member.key.name).get("state") == "quarantined", "it is in quarantine")


def test_values_of_1e30(siege: Siege) -> None:
    """M-2: finite, and no work: refused, whatever the others send."""
    with siege.attacked("M-2"):
        member = Member(siege)
        member.trains()
        numel = siege.layout.numels[0]
        assert refused(member, member.offer(1, torch.full((numel,), 1e30).numpy().tobytes())) == "norm"


def test_counters_and_lengths_that_cannot_be(siege: Siege) -> None:
    """M-3: 2^53 tokens, more steps than were made, none at all; bodies of another length, and of fragments from 512 on
    (which no message can name) or that this run has not."""
    with siege.attacked("M-3"):
        member = Member(siege)
        member.trains()
        zeros, short = member.zeros(), member.zeros()[:-4]
        for seq, (reason, changes) in enumerate([
            ("counters", {"tokens": HIGH}), ("counters", {"steps": HIGH, "tokens": HIGH}), ("counters", {"steps": 0}),
            ("counters", {"tokens": 0}), ("layout", {"fragment": 511}), ("layout", {"codec": "zip"}),
            ("layout", {"body": make_body("c/short", short, CHUNK)}),
            ("layout", {"body": Body(transfer="c/long", nbytes=HIGH, chunk_bytes=CHUNK, digest=1)}),
        ], 1):  # fmt: skip
            member.outbox.drop("c/short")
            member.outbox.add("c/short", short, CHUNK)
            assert refused(member, member.offer(seq, zeros, **changes)) == reason, changes
        with pytest.raises(ValueError, match=r"Contribution\.fragment"):
            member.offer(99, zeros, fragment=512)
        member.frames(
            Road.CONTROL, encode(member.offer(99, zeros)).replace(b"\xa8fragment\x00", b"\xa8fragment\xcd\x02\x00")
        )
        siege.until(lambda: siege.heard(member.key)["malformed"].get("frame"), "that one is no message")


def test_epochs_and_numbers_out_of_order(siege: Siege) -> None:
    """M-4: an old epoch's stamp, one to come, `after` of others, a number twice with other bytes."""
    with siege.attacked("M-4"):
        member = Member(siege)
        member.trains()
        zeros, version = member.zeros(), member.version()
        epoch = member.welcome.epoch
        for seq, (reason, changes) in enumerate([
            ("epoch", {"stamp": Stamp(NO_EPOCH, version)}),
            ("epoch", {"stamp": Stamp(Epoch(epoch.counter, 1), version)}),
            ("epoch", {"stamp": Stamp(Epoch(epoch.counter + 1, 1), version)}), ("after", {"after": 1}),
            ("after", {"after": HIGH}),
        ], 1):  # fmt: skip
            assert refused(member, member.offer(seq, zeros, **changes)) == reason, changes
        twice = member.offer(20, zeros)
        member.say(twice)
        other = make_body("c/20", b"\x7f" * len(zeros), CHUNK)
        member.say(replace(twice, body=other), replace(twice, seq=19))
        member.judged(len(member.sent))
        assert member.enemy.hear(w.Refused, Credit, Gone)


def test_another_model(siege: Siege) -> None:
    """M-5: a hello with another layout's digest is turned away, so nothing of that model is ever offered."""
    with siege.attacked("M-5"):
        rogue = siege.rogue()
        enemy = siege.enemy(rogue, rogue.name)
        enemy.say(w.Hello(name=rogue.name, incarnation=rogue.incarnation, layout_digest="0" * 32))
        assert enemy.hear(w.Unwelcome).reason == "layout"
        siege.says(f"{rogue.name} is turned away")


# ---- what counts, and under whose name


def test_zeros_and_what_was_its_own_played_again(siege: Siege) -> None:
    """M-6: zeros move nothing, and stand in the books under the name of who sent them; and when that process has left
    and another of its name is here, all that it ever said, said again twice, adds nothing."""
    member = Member(siege)
    siege.may_be_merged.add(member.key.name)
    with siege.attacked("M-6"):
        member.trains()
        said = member.offered(member.offer(1, member.zeros()))
        assert isinstance(said, w.Ack)
        siege.until(lambda: siege.stage.member(member.key.name).get("merged_tokens"), "its tokens are counted")
        member.say(w.Goodbye(reason="", trained_tokens=4, left_tokens=0, dropped_tokens=0))
        before = siege.settled(member.key.name)
        Member(siege, MemberKey(member.key.name, next(siege.incarnations)))
        for _ in range(2):
            for road, frames in list(member.sent):
                member.enemy.frames(road, *frames)
        siege.goes_on()
        assert siege.settled(member.key.name)[1] <= before[1]


def test_a_flipped_sign_at_the_usual_norm(siege: Siege) -> None:
    """M-7: an invited learner whose every contribution points the other way: it IS merged, as it looks like anybody's.
    What keeps the run alive is that it is one among others, and that `sync.clip` bounds its length."""
    member = Member(siege)
    siege.may_be_merged.add(member.key.name)
    with siege.attacked("M-7"):
        member.trains(10)
        flipped = torch.full((siege.layout.numels[0],), -1e-4)
        said = member.offered(member.offer(1, flipped.numpy().tobytes()))
        assert isinstance(said, w.Ack)
        siege.until(lambda: siege.stage.member(member.key.name).get("merged_tokens"), "it is merged")
        assert siege.stage.member(member.key.name)["state"] != "quarantined"
        member.say(w.Goodbye(reason="", trained_tokens=40, left_tokens=0, dropped_tokens=0))


def test_after_all_of_it_the_ledger_balances(siege: Siege) -> None:
    """Everybody leaves in order; the books balance, and by `zdiloco ledger verify`, too."""
    siege.end()
