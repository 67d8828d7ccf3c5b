"""Attacks of docs/attacks.md by one that is let in: its key is in the list, its name its own, and it means harm."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import zmq

from tests.accept.attackers import Member
from tests.accept.siege import MB, Siege
from tests.accept.stage import SLOW_MACHINE_S
from zdiloco.core import messages as w
from zdiloco.core.body import Body
from zdiloco.core.bounds import MAX_EPOCH
from zdiloco.node.sockets import Road
from zdiloco.units import NO_EPOCH, Epoch, MemberKey, Stamp
from zdiloco.wire.encoding import decode, encode
from zdiloco.wire.transfer import Chunk, Credit, Gone, checksums_of, make_body

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]
HIGH = 2**53


# ---- a run that has not begun


def test_a_layout_that_nobody_asked_for(siege: Siege) -> None:
    """P-1: before the first learner has come: layout and initial values of another model, heartbeats, handbacks and a
    contribution, without a hello. None of it is fetched, and the first learner's values begin the run."""
    rogue = siege.rogue()
    siege.stage.until(lambda: "syncer serves" in siege.syncer.errors, "it serves", siege.syncer)
    enemy = siege.enemy(rogue, rogue.name)
    body, stamp = make_body("layout/1", bytes(4096), 1024), Stamp(Epoch(1, 1), 1)
    said = [w.LayoutOffer(digest="x" * 32, body=body), w.Heartbeat(epoch=NO_EPOCH)]
    said += [w.InitialOffer(fragment=at, body=replace(body, transfer=f"initial/{at}")) for at in range(512)]
    said += [w.Handback(fragment=0, stamp=stamp, codec="fp32", value_bytes=4096, body=body)]
    enemy.say(*said, w.StatusQuery())
    while enemy.hear(w.Unwelcome, w.Status).__class__ is not w.Status:
        continue
    siege.join()
    assert siege.ask()["phase"] == "running"
    assert rogue.name not in siege.syncer.errors
    siege.nothing_merged()


# ---- words


@pytest.mark.parametrize("above", [2**60, MAX_EPOCH, 5], ids=["2^60", "highest", "5"])
def test_an_epoch_that_there_was_not(siege: Siege, above: int) -> None:
    """P-2: in Hello and in Heartbeat, without a proof and with a forged one: 2^60 is no epoch, so that is no message;
    what is one is not believed, and named once."""
    with siege.attacked(f"P-2 ({above})"):
        member = Member(siege)
        epoch = Epoch(min(MAX_EPOCH, member.welcome.epoch.counter + above), 1)
        hello = w.Hello(
            name=member.key.name, incarnation=member.key.incarnation, layout_digest=siege.layout.digest,
            run_id=member.run_id, epoch=epoch, stamps=tuple(Stamp(epoch, HIGH) for _ in siege.layout.numels),
        )  # fmt: skip
        for proof in ("", "0" * 64, member.welcome.proof):
            for message in (w.Heartbeat(epoch=epoch, proof=proof), replace(hello, proof=proof)):
                said = encode(message)
                fields = msgpack.unpackb(said)
                fields["epoch"] = [above, 1]
                member.frames(Road.CONTROL, msgpack.packb(fields) if above > MAX_EPOCH else said)
        if above > MAX_EPOCH:
            siege.until(lambda: siege.heard(member.key)["malformed"].get("frame", 0) >= 6, "none is a message")
        else:
            siege.says(f"what {member.key.name} claims is not believed")
        siege.goes_on()
        assert siege.ask()["epoch"] == member.welcome.epoch.counter
        assert siege.syncer.errors.count(f"what {member.key.name} claims") <= 1


def test_stamps_of_versions_that_do_not_exist(siege: Siege) -> None:
    """P-3: in a hello of the right epoch, with the proof that came with it: a run at work asks for nothing."""
    with siege.attacked("P-3"):
        member = Member(siege)
        epoch, proof = member.welcome.epoch, member.welcome.proof
        stamps = tuple(Stamp(epoch, HIGH) for _ in range(512))
        member.say(w.Hello(
            name=member.key.name, incarnation=member.key.incarnation, layout_digest=siege.layout.digest,
            run_id=siege.ask()["run_id"], epoch=epoch, stamps=stamps[: len(siege.layout.numels)], proof=proof,
        ))  # fmt: skip
        assert member.enemy.hear(w.Welcome).epoch == epoch
        assert all(each["version"] < HIGH for each in siege.ask()["fragments"])


def test_a_handback_that_nobody_asked_for(siege: Siege) -> None:
    """P-4: forged states of every fragment, with a forged proof: none is fetched."""
    with siege.attacked("P-4"):
        member = Member(siege)
        for fragment, numel in enumerate(siege.layout.numels):
            body = member.body(f"h/{fragment}", bytes(4 * numel + 100))
            stamp = Stamp(member.welcome.epoch, 10**6)
            member.say(w.Handback(
                fragment=fragment, stamp=stamp, codec="fp32", value_bytes=4 * numel, body=body, proof="0" * 64
            ))  # fmt: skip
        member.say(w.StatusQuery())
        said = member.enemy.hear(Credit, w.Status)
        assert said.transfer.startswith("status") if isinstance(said, Credit) else said
        assert all(each["version"] < 10**6 for each in siege.ask()["fragments"])


def test_reports_that_cannot_be(siege: Siege) -> None:
    """P-5: 2^53 steps and tokens, and back to nothing, again and again: its own figures are wrong, and nothing else."""
    with siege.attacked("P-5"):
        member = Member(siege)
        for at in range(200):
            count = HIGH if at % 2 else 0
            member.say(w.Report(step=count, trained_tokens=count, unmerged_tokens=count, dropped_tokens=count))
            member.say(w.Decline(fragment=at % 4, version=at, reason="no", eta_s=1e9))
        member.judged(401)


def test_a_thousand_processes_of_one_name(siege: Siege) -> None:
    """P-6: hellos of one name, by ever new processes, each taking leave of the one before: one member, one line a
    second at most, and the honest ones are not asked to say anything again."""
    with siege.attacked("P-6"):
        name, before = siege.rogue().name, len(siege.syncer.errors.splitlines())
        hello = w.Hello(name=name, incarnation=1, layout_digest=siege.layout.digest, run_id=siege.ask()["run_id"])
        for incarnation in range(1, 301):
            enemy = siege.enemy(MemberKey(name, incarnation), name)
            enemy.say(replace(hello, incarnation=incarnation))
            enemy.hear(w.Welcome, w.Unwelcome)
            enemy.say(w.Goodbye(reason="", trained_tokens=0, left_tokens=0, dropped_tokens=0))
            siege.enemies.remove(enemy)
            enemy.close()
        assert [each["name"] for each in siege.ask()["learners"]].count(name) == 1
        assert len(siege.syncer.errors.splitlines()) < before + 3000


# ---- transfers


def test_a_gigabyte_of_chunks_without_credit(siege: Siege) -> None:
    """P-7: a thousand chunks of a megabyte that nobody granted, of transfers that do not exist."""
    with siege.attacked("P-7", most_mb=18):
        member, part = Member(siege), bytes(MB)
        header = encode(Chunk(transfer="c/1", index=0, checksum=checksums_of(part, MB)[0]))
        for _ in range(1000):
            member.enemy.frames(Road.BULK, header, part)
        member.judged(2000)
        assert siege.ask()["node"]["reserved_bytes"] < 16 * MB


def test_chunks_with_wrong_sums_sizes_and_digests(siege: Siege) -> None:
    """P-8: a contribution whose chunks have wrong checksums, wrong lengths, and one whose digest is wrong: the first
    two are asked for again, the third is given up; nothing is held."""
    with siege.attacked("P-8"):
        member = Member(siege)
        member.trains()
        spoils: list[Callable[[Any], Any]] = [
            lambda out: (replace(out[0], checksum=out[0].checksum ^ 1), out[1]),
            lambda out: (out[0], out[1] + b"\0"),
            lambda out: (replace(out[0], index=out[0].index + 2**40), out[1]),
        ]
        for seq, spoil in enumerate(spoils, 1):
            member.say(member.offer(seq, member.zeros()))
            while member.serve(Credit, spoil=spoil).transfer != f"c/{seq}":
                continue
        good = member.offer(9, b"\1" * len(member.zeros()))
        member.say(replace(good, body=replace(good.body, digest=good.body.digest ^ 1)))
        assert member.serve(Gone, w.Refused)
        siege.until(lambda: siege.heard(member.key)["malformed"].get("chunk"), "chunks that were none")


def test_credit_without_end(siege: Siege) -> None:
    """P-9: for every state that it hears of, to 2^53 and beyond its end, all of it missing, again and again; and it
    reads nothing of what comes."""
    with siege.attacked("P-9", most_mb=32):
        member = Member(siege)
        with siege.listener(member.key, Road.CONTROL_CAST) as listener:
            listener.setsockopt(zmq.SUBSCRIBE, b"")
            for _ in range(40):
                assert listener.poll(60_000), "a beat"
                _asks_for_all(member, [*_transfers(listener), "nothing", ""])


def _asks_for_all(member: Member, names: list[str]) -> None:
    for name in names * 10:
        member.enemy.say(
            Credit(transfer=name, upto=HIGH, received=0, missing=((0, HIGH),)),
            Credit(transfer=name, upto=0, received=HIGH, missing=((3, 1), (2**40, 9))),
            Gone(transfer=name, by_sender=True, reason="x" * 500),
        )


def _transfers(listener: Any) -> Iterator[str]:
    """Names of the bodies that were announced since."""
    while listener.poll(0):
        message = decode(listener.recv())
        if isinstance(message, w.Update):
            yield message.body.transfer


def test_bodies_that_are_offered_and_never_delivered(siege: Siege) -> None:
    """P-10: 4,096 of them, of all fragments and some that there are not, of all sizes: the budget holds one of each
    fragment at most, and rounds do not wait for it."""
    with siege.attacked("P-10"):
        member = Member(siege)
        member.trains()
        first = member.offer(1, member.zeros())
        nbytes = [4 * numel for numel in siege.layout.numels]
        for at in range(4096):
            fragment = at % (len(nbytes) + 1)
            size = nbytes[fragment] if fragment < len(nbytes) else 100
            size = HIGH if at % 7 == 0 else size
            body = Body(transfer=f"c/{at}", nbytes=size, chunk_bytes=1024, digest=1)
            member.enemy.say(replace(first, fragment=512 - 1 if at % 5 == 0 else fragment, seq=at + 1, body=body))
        member.judged(4096)
        status = siege.ask()
        assert status["node"]["reserved_bytes"] <= sum(nbytes) * 3 + 2**20
        assert status["budget"]["used_bytes"] <= 16 * MB


@pytest.mark.parametrize("what", ["pull", "status"])
def test_ten_thousand_questions_and_nobody_reads_the_answers(siege: Siege, what: str) -> None:
    """P-11 and P-12: Pull and StatusQuery, as fast as they are taken; answers wait in a bounded place."""
    with siege.attacked({"pull": "P-11", "status": "P-12"}[what], most_mb=16):
        member = Member(siege)
        member.enemy.sockets[Road.CONTROL].setsockopt(zmq.RCVHWM, 1)
        at = 0
        for at in range(10_000):
            member.enemy.say(w.Pull(fragment=at % 4) if what == "pull" else w.StatusQuery())
        assert at == 9999
        member.judged(10_000)


# ---- a syncer that comes back


def test_a_returning_syncer_is_handed_forged_states(siege: Siege) -> None:
    """P-13: the syncer dies; whoever claims by hello the newest states of all, under the epoch that it was welcomed to
    and its proof, is asked for them, and hands back forged ones with forged proofs: none is taken."""
    member = Member(siege)
    epoch, proof = member.welcome.epoch, member.welcome.proof
    siege.syncer.kill()
    siege.start_syncer()
    over = threading.Event()
    hello = w.Hello(
        name=member.key.name, incarnation=member.key.incarnation, layout_digest=siege.layout.digest, epoch=epoch,
        run_id=member.run_id, stamps=tuple(Stamp(epoch, 10**6) for _ in siege.layout.numels),
        proof=proof,
    )  # fmt: skip
    for fragment, numel in enumerate(siege.layout.numels):
        member.body(f"h/{fragment}", bytes(4 * numel + 100))

    def forge() -> None:
        while not over.is_set():
            with suppress(AssertionError):
                member.say(hello)
                asked = member.serve(w.HandbackRequest, w.Welcome, limit_s=1.0)
                if isinstance(asked, w.HandbackRequest):
                    numel = siege.layout.numels[asked.fragment]
                    body = member.outbox.body(f"h/{asked.fragment}")
                    member.say(w.Handback(
                        fragment=asked.fragment, stamp=Stamp(epoch, 10**6), codec="fp32", value_bytes=4 * numel,
                        body=body, proof="0" * 64,
                    ))  # fmt: skip

    thread = threading.Thread(target=forge, name="forger")
    thread.start()
    try:
        siege.goes_on()
    finally:
        over.set()
        thread.join()
        member.enemy.close()
        siege.enemies.clear()
    status = siege.ask()
    assert status["epoch"] == epoch.counter + 1
    assert all(each["version"] < 10**6 for each in status["fragments"])
    assert f"body of {member.key.name} unusable" in siege.syncer.errors
    siege.nothing_merged()


def test_after_all_of_it_the_ledger_balances(siege: Siege) -> None:
    """Everybody leaves in order; the books balance, and by `zdiloco ledger verify`, too."""
    siege.end()
