"""Attacks of docs/attacks.md by who is not let in, or speaks for somebody else, or speaks no word of the protocol."""

import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tests.accept.attackers import Loris, Member, Tap, handshakes, played_again
from tests.accept.siege import EXPIRED, HONEST, MB, ONLY_WATCHES, Siege
from tests.accept.stage import SLOW_MACHINE_S
from tests.hostile.enemy import RAW, huge_frame, malformed_headers, nonsense
from tests.wire.examples import EXAMPLES
from zdiloco.core import messages as w
from zdiloco.core.messages import Bundled
from zdiloco.node.invitation import from_line
from zdiloco.node.keys import Pair, load_public
from zdiloco.node.sockets import Road
from zdiloco.units import MemberKey
from zdiloco.wire.invitations import Join
from zdiloco.wire.transfer import Chunk, make_body

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]


@pytest.fixture(scope="module")
def loris(siege: Siege) -> Iterator[Loris]:
    siege.ready()
    found = Loris(siege.stage.port, 8)
    yield found
    found.close()


def stray_pair() -> Pair:
    return Pair(*zmq.curve_keypair())


# ---- keys


def test_no_key(siege: Siege, loris: Loris) -> None:
    """K-1: sockets without encryption at all four ports; no handshake succeeds, and what is sent is heard by nobody."""
    with siege.attacked("K-1"):
        assert set(handshakes(siege, {}).values()) <= {"FAILED_PROTOCOL", "FAILED_NO_DETAIL"}
        assert siege.heard(siege.rogue())["frames_down"] == 0


def test_a_key_of_its_own_making(siege: Siege) -> None:
    """K-2: 50 of them, at all four ports; turned away, and the log says so once."""
    with siege.attacked("K-2"):
        for _ in range(50):
            assert set(handshakes(siege, siege.curve(stray_pair())).values()) == {"FAILED_AUTH"}
        siege.says("turned away who=127.0.0.1")
        assert siege.syncer.errors.count("turned away who=127.0.0.1 (its key is not in net.allowed)") == 1


def test_a_key_that_was_good_until_2020(siege: Siege) -> None:
    """K-3: turned away at all four ports; the log has the name and the day."""
    with siege.attacked("K-3"):
        assert set(handshakes(siege, siege.curve(siege.pair(EXPIRED))).values()) == {"FAILED_AUTH"}
        siege.says(f"the key of {EXPIRED} was good until 2020-02-29")


def test_the_name_of_another_in_the_routing_identity(siege: Siege) -> None:
    """K-4: a good key on sockets that bear name and incarnation of an honest learner: every kind of word is refused,
    the owner is robbed of none, and the log names whose key it was."""
    with siege.attacked("K-4"):
        rogue, victim = siege.rogue(), MemberKey("a", siege.incarnation("a"))
        before, dropped = siege.strangers(), siege.heard(victim)["dropped"]
        enemy = siege.enemy(victim, rogue.name)
        words = [message for message in EXAMPLES.values() if not isinstance(message, Chunk)]
        enemy.say(*words)
        enemy.chunk("c/1", 0, 0, b"x")
        siege.until(lambda: siege.strangers() >= before + len(words), "all of it is refused")
        siege.says(f"the key of {rogue.name} may not say Goodbye as a")
        assert siege.stage.member("a")["state"] == "live"
        assert siege.heard(victim)["dropped"] == dropped


def test_the_name_of_another_in_hello(siege: Siege) -> None:
    """K-5: a good key under its own identity, that says hello for somebody else: it speaks for nobody."""
    with siege.attacked("K-5"):
        rogue, victim = siege.rogue(), siege.incarnation("a")
        before = siege.strangers("hello")
        siege.enemy(rogue, rogue.name).say(
            w.Hello(name="a", incarnation=victim), w.Hello(name="a", incarnation=rogue.incarnation)
        )
        siege.until(lambda: siege.strangers("hello") >= before + 2, "both are refused")
        assert not siege.stage.member(rogue.name)


def test_a_bundle_with_the_work_of_others(siege: Siege) -> None:
    """K-6: a learner's key that plays the relay: a bundle in the name of honest learners is refused unread."""
    with siege.attacked("K-6"):
        member = Member(siege)
        before = siege.strangers()
        others = tuple(Bundled(name, siege.incarnation(name), 10**6, 0, 1, 4, 1.0, 4.0) for name in HONEST[:2])
        body = make_body("bundle/1", bytes(4096), 1024)
        member.say(w.Bundle(fragment=0, number=1, method="rda", codec="fp32", members=others, body=body))
        siege.until(lambda: siege.strangers() > before, "it is refused")
        siege.says(f"the key of {member.key.name} may not say Bundle as {member.key.name}")


def test_joins_with_keys_that_are_others_or_none(siege: Siege) -> None:
    """K-7: a thousand times: to put another's public key, or rubbish, in the place of its own, or its own in the place
    of another's."""
    with siege.attacked("K-7"):
        rogue, victim = siege.rogue(), MemberKey("b", siege.incarnation("b"))
        own, other = siege.enemy(rogue, rogue.name), siege.enemy(victim, rogue.name)
        stolen = load_public(siege.keys, "a").decode()
        before = siege.strangers()
        for at in range(250):
            own.say(Join(key=stolen), Join(key="x" * (at % 60)), Join(key=zmq.curve_keypair()[0].decode()))
            other.say(Join(key=siege.pair(rogue.name).public.decode()))
        assert own.hear(w.Unwelcome).text == f"{rogue.name} has joined already"
        siege.until(lambda: siege.strangers() >= before + 250, "those in another's name are refused")
        siege.until(lambda: siege.heard(rogue)["frames_down"] >= 750, "the others are answered")
        assert not list((siege.stage.run_dir / "invited").glob("*"))


def test_an_invitation_used_twice_and_for_other_things(siege: Siege) -> None:
    """K-8: a good invitation is good for nothing but joining; once used, whoever has copied the line is a stranger."""
    with siege.attacked("K-8"):
        name = "invited-0"
        made = siege.stage.command("invite", str(siege.stage.toml), name, "--host", "127.0.0.1", label="invite")
        assert made.wait() == 0, made.errors
        line = made.output.strip()
        pair, key = from_line(line).pair, MemberKey(name, 77)
        before = siege.strangers()
        thief = siege.enemy(key, pair)
        thief.say(
            w.Hello(name=name, incarnation=77),
            w.StatusQuery(),
            w.Report(step=1, trained_tokens=4, unmerged_tokens=4, dropped_tokens=0),
        )
        siege.until(lambda: siege.strangers() >= before + 3, "what is no Join is refused")
        place = siege.stage.folder / name
        joined = siege.stage.command("join", line, "--dir", str(place), label="join")
        assert joined.wait() == 0, joined.errors
        assert set(handshakes(siege, siege.curve(pair)).values()) == {"FAILED_AUTH"}
        before = siege.strangers()
        thief.say(*[Join(key=zmq.curve_keypair()[0].decode())] * 1000)  # on the connection that it had before
        siege.until(lambda: siege.strangers() >= before + 1000, "none of them is taken")


def test_who_may_watch_and_contributes(siege: Siege) -> None:
    """K-9: a key with no right but to watch: its hello as a learner, and its contribution, are refused."""
    with siege.attacked("K-9"):
        key = MemberKey(ONLY_WATCHES, next(siege.incarnations))
        enemy = siege.enemy(key, ONLY_WATCHES)
        enemy.say(w.Hello(name=key.name, incarnation=key.incarnation, layout_digest=siege.layout.digest))
        assert "may not say Hello" in enemy.hear(w.Unwelcome).text
        enemy.say(EXAMPLES["contribution"])
        siege.says(f"the key of {ONLY_WATCHES} may not say Contribution as {ONLY_WATCHES}")


def test_what_a_learner_has_sent_is_played_again(siege: Siege, module_ports: Callable[[int], int]) -> None:
    """K-10: on the way of an honest learner somebody keeps every byte that it sends; when it has left, all is said
    again, twice. It is encrypted under keys of connections that are over: each is closed, and nothing is heard."""
    port = module_ports(4)
    tap = Tap(port, siege.stage.port)
    toml = siege.stage.folder / "tapped.toml"
    toml.write_text(siege.stage.toml.read_text().replace(f"port = {siege.stage.port}", f"port = {port}"))
    try:
        learner = siege.stage.script("c", seed=3, pace_s=0.01, toml=toml)
        siege.stage.until(lambda: siege.stage.member("c").get("merged_tokens"), "c is merged", *siege.living, learner)
        siege.stage.end(learner)
    finally:
        tap.close()
    assert sum(len(data) for _, said in tap.heard for data in said) > 10_000
    left = siege.settled("c")
    with siege.attacked("K-10"):
        for _ in range(2):
            assert played_again(siege.stage.port, tap.heard) == len(tap.heard) >= 4
        assert siege.settled("c") == left


# ---- the wire


def test_half_greetings_and_other_protocols(siege: Siege) -> None:
    """W-1: HTTP, TLS, zeros, a pickle, half a greeting, a greeting with garbage for a handshake: at all four ports."""
    with siege.attacked("W-1"):
        curve = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE".ljust(23, b"\0") + bytes(32)
        hellos = [curve + b"\x04\xc8\x05HELLO" + random.Random(at).randbytes(195) for at in range(5)]
        opened = []
        for road in range(4):
            for data in [*RAW, *hellos, curve + huge_frame(2**62), curve[:11]]:
                opened.append(socket.create_connection(("127.0.0.1", siege.stage.port + road), timeout=60))
                opened[-1].sendall(data)
        siege.goes_on()
        for made in opened:
            made.close()


def test_five_hundred_connections_that_say_nothing(siege: Siege) -> None:
    """W-2: held open while rounds go on; half of them have sent a greeting."""
    with siege.attacked("W-2"):
        flat = siege.figures.descriptors
        opened = [socket.create_connection(("127.0.0.1", siege.stage.port + at % 4), timeout=60) for at in range(500)]
        for made in opened[::2]:
            made.sendall(b"\xff" + bytes(8) + b"\x7f\x03")
        siege.until(lambda: siege.figures.descriptors >= flat + 450, "all are taken in")
        siege.goes_on()
        for made in opened:
            made.close()
        siege.until(lambda: siege.figures.descriptors <= flat + 20, "all descriptors are let go")


def test_headers_that_are_bombs(siege: Siege) -> None:
    """W-3: by a good key, on both roads: nested a thousand deep, lengths of 2^32 announced, pickles, 60 KB of zeros."""
    with siege.attacked("W-3"):
        member = Member(siege)
        wrong = [*malformed_headers(), b"\x91" * 1000, b"\x81\xa1v" * 1000, bytes(65_000)]
        for road in (Road.CONTROL, Road.BULK):
            for header in wrong:
                member.frames(road, header)
                member.frames(road, header, b"payload")
        siege.until(
            lambda: sum(siege.heard(member.key)["malformed"].values()) >= 4 * len(wrong), "all of them are refused"
        )


def test_messages_of_ten_thousand_frames(siege: Siege) -> None:
    """W-4: by a good key, on both roads, a kilobyte each."""
    with siege.attacked("W-4", most_mb=2 * 2 * 10):
        member = Member(siege)
        for road in (Road.CONTROL, Road.BULK):
            for _ in range(2):
                member.enemy.frames(road, *[bytes(1024)] * 10_000)
        siege.until(lambda: sum(siege.heard(member.key)["malformed"].values()) >= 4, "all of them are refused")


def test_frames_of_a_hundred_megabytes(siege: Siege) -> None:
    """W-5: by a good key, on both roads: the connection is closed before anything of it is kept."""
    with siege.attacked("W-5"):
        member = Member(siege)
        heard = siege.heard(member.key)["bytes_down"]
        for road in (Road.CONTROL, Road.BULK):
            member.enemy.frames(road, bytes(100 * MB))
            member.enemy.sockets[road].send(b"x")  # over the next connection
        siege.until(lambda: siege.heard(member.key)["bytes_down"] >= heard + 2, "what comes after is heard")
        assert siege.heard(member.key)["bytes_down"] < heard + MB


def test_nonsense_by_a_good_key(siege: Siege) -> None:
    """W-6: two thousand frames, random and damaged, one, several and too many, on both roads."""
    with siege.attacked("W-6"):
        member, noise, sent = Member(siege), nonsense(random.Random(7)), 0
        while sent < 2000:
            road, frames = next(noise)
            if road in member.enemy.sockets:
                member.enemy.frames(road, *frames)
                sent += 1
        siege.until(lambda: sum(siege.heard(member.key)["malformed"].values()) >= 1000, "most of them are refused")


def test_identities_that_no_process_has(siege: Siege) -> None:
    """W-7: by a good key: empty names, binary ones, the longest there are; counted, and answered by nobody."""
    with siege.attacked("W-7"):
        rogue = siege.rogue()
        before = siege.strangers("identity")
        for identity in (b"x", b"\xff" * 200, b"a:0", b"a:000000000000029A", b"a:" + b"0" * 16, b"a" * 255):
            siege.enemy(identity, rogue.name).say(*[w.StatusQuery()] * 20)
        siege.until(lambda: siege.strangers("identity") >= before + 120, "all are counted")


def test_ten_thousand_subscriptions(siege: Siege) -> None:
    """W-8: by a good key, at both broadcasts, a hundred letters each. They are kept while the connection stands."""
    with siege.attacked("W-8", most_mb=32):
        key = siege.rogue()
        with siege.listener(key, Road.CONTROL_CAST) as words, siege.listener(key, Road.BULK_CAST) as bodies:
            for listener in (words, bodies):
                _subscribes_to_much(listener)
            siege.goes_on()


def _subscribes_to_much(listener: Any) -> None:
    for at in range(10_000):
        listener.setsockopt(zmq.SUBSCRIBE, f"{at:0100d}".encode())
    listener.setsockopt(zmq.SUBSCRIBE, b"")
    assert listener.poll(60_000), "it hears the broadcast, so all was taken in"


def test_slow_loris(siege: Siege, loris: Loris) -> None:
    """W-9: eight connections that send a byte a second: each is closed when its handshake has taken ten seconds."""
    with siege.attacked("W-9"):
        siege.until(lambda: loris.closed == 8, "all are closed")


def test_after_all_of_it_the_ledger_balances(siege: Siege) -> None:
    """Everybody leaves in order; nobody but the honest is merged."""
    siege.end()
