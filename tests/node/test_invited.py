"""An invitation: its line, the files of who was invited, and that it is good once."""

import datetime
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils.monitor import parse_monitor_message

from tests.node.conftest import Run
from tests.node.test_keys import Folder, alone, ends
from zdiloco.config import RunConfig, from_tree, of_shared, shared
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Unwelcome
from zdiloco.errors import ConfigError, LinkError
from zdiloco.node.allowed import Right, load_allowed
from zdiloco.node.guard import Guard
from zdiloco.node.hooks import Hooks
from zdiloco.node.invitation import PREFIX, Invitation, from_line, to_line
from zdiloco.node.invited import accept, invite, load_invited, withdraw
from zdiloco.node.joiner import Joiner, join
from zdiloco.node.keys import Keys, load_pair, make_pair
from zdiloco.rundir.disk import Disk
from zdiloco.wire.invitations import Join, Joined

TODAY = datetime.date(2026, 11, 29)
WEEK = TODAY + datetime.timedelta(days=7)


def an_invitation(**changes: Any) -> Invitation:
    server, secret = (each.decode() for each in zmq.curve_keypair())
    said = {"host": "10.0.0.5", "port": 5700, "run": "run", "name": "eu-0", "server": server, "secret": secret}
    return Invitation(**{**said, **changes})


# ---- the line


def test_a_line_comes_back_whole_and_in_pieces_of_a_mail() -> None:
    invitation = an_invitation(host="fe80::1%eth0", name="a" * 64)
    line = to_line(invitation)
    assert from_line(line) == invitation
    assert from_line(f"  {line[:50]}\n{line[50:]} ") == invitation
    assert invitation.secret not in repr(invitation)
    assert invitation.pair.public == zmq.curve_public(invitation.secret.encode())


@given(st.data())
def test_a_line_that_was_cut_or_altered_is_no_line(data: st.DataObject) -> None:
    line = to_line(an_invitation())
    at = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.characters(codec="utf-8"))
    for wrong in (line[:at], line[:at] + other + line[at + 1 :]):
        if "".join(wrong.split()) != line:
            with pytest.raises(ConfigError, match="not the whole line"):
                from_line(wrong)


def test_a_line_has_one_spelling() -> None:
    """The last of its letters has bits that say nothing: in another one they may be others."""
    lines = (to_line(an_invitation(run="r" * length)) for length in range(1, 4))
    line = next(line for line in lines if len(line.removeprefix(PREFIX)) % 4)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for last in letters.replace(line[-1], ""):
        with pytest.raises(ConfigError, match="not the whole line"):
            from_line(line[:-1] + last)


@pytest.mark.parametrize("text", ["", "zdiloco1", PREFIX, PREFIX + "AAAA", "zdiloco2-" + "A" * 50, PREFIX + "A" * 9999])
def test_what_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not the whole line that zdiloco invite has printed"):
        from_line(text)


@pytest.mark.parametrize(
    "wrong", [{"host": "a b"}, {"host": ""}, {"port": 80}, {"run": ""}, {"name": "../x"}, {"server": "x"}]
)
def test_an_invitation_that_cannot_be_is_not_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        an_invitation(**wrong)


# ---- the files


def test_who_is_invited_may_join_and_nothing_else(tmp_path: Path) -> None:
    pair = invite(tmp_path / "invited", "eu-0", WEEK)
    allowed, key = load_allowed(tmp_path / "none.toml", load_invited(tmp_path / "invited")), pair.public.decode()
    assert allowed.may_say(key, "eu-0", Join(key="x"), WEEK)
    assert not allowed.may_say(key, "eu-0", Join(key="x"), WEEK + datetime.timedelta(days=1))
    assert not allowed.may_say(key, "eu-1", Join(key="x"), TODAY)
    for name in ("eu-0", "status"):
        assert not allowed.may_say(key, name, object(), TODAY)


def test_an_invitation_can_be_repeated_until_it_is_used_and_withdrawn_after(tmp_path: Path) -> None:
    first, second = (invite(tmp_path, "eu-0", WEEK) for _ in range(2))
    assert load_invited(tmp_path)["eu-0"].key == second.public.decode() != first.public.decode()
    accept(tmp_path, "eu-0", zmq.curve_keypair()[0].decode())
    assert load_invited(tmp_path)["eu-0"].rights == (Right.CONTRIBUTE,)
    assert load_invited(tmp_path)["eu-0"].expires is None
    with pytest.raises(ConfigError, match="eu-0 has joined already"):
        invite(tmp_path, "eu-0", WEEK)
    withdraw(tmp_path, "eu-0")
    assert not load_invited(tmp_path)
    with pytest.raises(ConfigError, match="eu-0 was not invited"):
        withdraw(tmp_path, "eu-0")


@pytest.mark.parametrize("name", ["status", "relay", "syncer", "../x", ""])
def test_names_that_cannot_be_are_not_invited(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        invite(tmp_path, name, WEEK)
    assert not list(tmp_path.iterdir())


def test_the_list_counts_before_an_invitation(tmp_path: Path) -> None:
    invite(tmp_path / "invited", "eu-0", WEEK)
    key = zmq.curve_keypair()[0].decode()
    (tmp_path / "allowed.toml").write_text(f'[eu-0]\nkey = "{key}"\n')
    allowed = load_allowed(tmp_path / "allowed.toml", load_invited(tmp_path / "invited"))
    assert allowed.entries["eu-0"].key == key


def test_a_file_that_is_not_right_is_named(tmp_path: Path) -> None:
    (tmp_path / "eu-0.toml").write_text("key = 3\n")
    with pytest.raises(ConfigError, match=r"eu-0\.toml: \[eu-0\]"):
        load_invited(tmp_path)


# ---- the door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Callable[[], Guard]]:
    make_pair(tmp_path, "syncer")
    made: list[tuple[Any, Guard]] = []

    def open_door() -> Guard:
        """In a context of its own, for that of a process is one."""
        own = load_pair(tmp_path, "syncer")
        context: Any = zmq.Context()
        guard = Guard(context, Keys(own, own.public), tmp_path / "allowed.toml", lambda: TODAY, tmp_path / "invited")
        made.append((context, guard))
        return guard

    yield open_door
    for context, guard in made:
        guard.close()
        context.term()


def test_an_invitation_is_good_once(door: Callable[[], Guard], tmp_path: Path) -> None:
    invite(tmp_path / "invited", "eu-0", WEEK)
    invite(tmp_path / "invited", "eu-1", WEEK)
    guard, (mine, other) = door(), (zmq.curve_keypair()[0].decode() for _ in range(2))
    assert "its new key is none" in guard.join("eu-0", "rubbish")
    assert "somebody else's" in guard.join("eu-0", guard.allowed.entries["eu-1"].key)
    assert guard.join("eu-0", mine) == ""
    assert guard.join("eu-0", mine) == "", "said again, as where the answer was lost"
    assert guard.join("eu-0", other) == "eu-0 has joined already"
    for each in (guard, door()):  # now, and when the syncer is started again
        assert each.allowed.name_of(mine) == "eu-0"
        assert each.allowed.may_say(mine, "eu-0", object(), WEEK + datetime.timedelta(days=400))


def test_a_line_that_was_withdrawn_or_replaced_is_void_at_once(door: Callable[[], Guard], tmp_path: Path) -> None:
    """Though the list has not been read anew: nobody has knocked since."""
    for name in ("eu-0", "eu-1", "eu-2"):
        invite(tmp_path / "invited", name, WEEK)
    guard, key = door(), zmq.curve_keypair()[0].decode()
    second = invite(tmp_path / "invited", "eu-0", WEEK)
    assert "is void" in guard.join("eu-0", key)
    withdraw(tmp_path / "invited", "eu-1")
    assert "is void" in guard.join("eu-1", key)
    assert load_invited(tmp_path / "invited")["eu-0"].key == second.public.decode(), "nobody's file was replaced"
    assert "eu-1" not in load_invited(tmp_path / "invited")
    assert guard.join("eu-2", key) == ""


def test_when_all_who_were_invited_are_withdrawn_nobody_may_connect(door: Callable[[], Guard], tmp_path: Path) -> None:
    """There never was a list, so that there is none is no mistake; where there was one it is."""
    invite(tmp_path / "invited", "eu-0", WEEK)
    guard, key = door(), zmq.curve_keypair()[0].decode()
    assert guard.join("eu-0", key) == ""
    withdraw(tmp_path / "invited", "eu-0")
    assert guard.reload() == {"eu-0"}
    assert guard.allowed.entries == {}
    (tmp_path / "allowed.toml").write_text(f'[eu-1]\nkey = "{key}"\n')
    other = door()
    (tmp_path / "allowed.toml").unlink()
    assert other.reload() == set()
    assert other.allowed.name_of(key) == "eu-1"


def test_a_list_that_is_being_written_puts_nobody_out(door: Callable[[], Guard], tmp_path: Path) -> None:
    """An editor moves it away for a moment, just as a stranger knocks or a SIGHUP comes."""
    key = zmq.curve_keypair()[0].decode()
    listed = tmp_path / "allowed.toml"
    listed.write_text(f'[eu-9]\nkey = "{key}"\n')
    invite(tmp_path / "invited", "eu-0", WEEK)
    guard = door()
    listed.rename(tmp_path / "away")
    pair = invite(tmp_path / "invited", "eu-1", WEEK)
    assert guard._look_for_invited()
    assert guard.allowed.name_of(pair.public.decode()) == "eu-1"
    assert guard.reload() == set()
    assert guard.expired() == set()
    assert guard.allowed.name_of(key) == "eu-9"


def test_who_joins_with_a_key_of_the_list_spoils_no_list(door: Callable[[], Guard], tmp_path: Path) -> None:
    """It is listed later: then its entry counts, and the other one's does not."""
    invite(tmp_path / "invited", "thief", WEEK)
    guard, key = door(), zmq.curve_keypair()[0].decode()
    assert guard.join("thief", key) == ""
    (tmp_path / "allowed.toml").write_text(f'[owner]\nkey = "{key}"\n')
    assert guard.reload() == {"thief"}
    assert door().allowed.name_of(key) == "owner"


def test_a_disk_that_is_full_lets_nobody_join(
    door: Callable[[], Guard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invite(tmp_path / "invited", "eu-0", WEEK)
    guard, key = door(), zmq.curve_keypair()[0].decode()
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space left")))
        assert "cannot keep its key" in guard.join("eu-0", key)
    assert guard.allowed.name_of(key) == ""
    assert guard.join("eu-0", key) == ""


# ---- the settings


def test_the_settings_of_a_run_are_taken_over_whole() -> None:
    config = from_tree({"sync": {"gamma": 0.25, "adaptive": True}, "run": {"name": "x-1", "dir": "/here"}})
    mine = {"run": {"dir": "there"}, "net": {"connect": "10.0.0.5", "port": 6000}}
    taken = of_shared(shared(config), mine, "the syncer")
    assert taken.sync == config.sync
    assert taken.task == config.task
    assert (taken.run.name, taken.run.dir, taken.net.connect) == ("x-1", "there", "10.0.0.5")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("run.dir", '"/etc"', "run.dir is no setting to be taken over"), ("net.keys", '""', "no setting"),
        ("sync.later", "1", "unknown key sync.later"), ("sync.gamma", "7", "sync.gamma is 7"),
        ("sync.gamma", "1\nx = 2", "is not TOML"), ("sync.gamma", "]", "is not TOML"), ("x", "1", "unknown section"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_named(path: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        of_shared([(path, value)], {}, "the syncer")
    assert str(caught.value).startswith("the syncer")


# ---- over sockets


@pytest.fixture
def run(run_of: Callable[..., Run], tmp_path: Path) -> Run:
    made = run_of(net=Folder(tmp_path / "keys", "a").net)
    made.start_syncer(hooks=Hooks(shared=shared(RunConfig())))
    return made


def invitation_of(run: Run, name: str = "eu-0") -> Invitation:
    pair = invite(run.config.run.path / "invited", name, WEEK + datetime.timedelta(days=10_000))
    server = load_pair(Path(run.config.net.keys), "syncer").public.decode()
    port = run.config.net.port
    return an_invitation(host="127.0.0.1", port=port, name=name, server=server, secret=pair.secret.decode())


@pytest.mark.net
def test_who_was_invited_joins_a_syncer_that_runs_and_is_merged(run: Run, tmp_path: Path) -> None:
    """No SIGHUP: the stranger's knock has the syncer look for new invitations."""
    invitation = invitation_of(run)
    answer = join(invitation, tmp_path / "theirs", 30.0)
    assert dict(answer.settings)["sync.sync_period"] == "24"
    trainer = alone(run, "eu-0", keys=str(tmp_path / "theirs"))
    run.trainers.append(trainer)
    assert run.syncer is not None
    machine = run.syncer.machine
    run.until(lambda: any(m.merged_tokens for m in machine.fleet.members.values()) or machine.rounds >= 2, "a round")
    assert join(invitation, tmp_path / "theirs", 30.0) == answer, "the same machine may say its line again"
    with pytest.raises(ConfigError, match="does not take this invitation of eu-0: it was used"):
        join(invitation, tmp_path / "thief", 30.0)


@pytest.mark.net
def test_who_has_an_invitation_gets_nothing_else_by_it(run: Run, tmp_path: Path) -> None:
    invitation = invitation_of(run)
    make_pair(tmp_path / "thief", "eu-0")
    for half, key in (("", invitation.pair.public), ("_secret", invitation.pair.public)):
        secret = f'    secret-key = "{invitation.secret}"\n' if half else ""
        place = tmp_path / "thief" / f"eu-0.key{half}"
        place.write_text(f'metadata\ncurve\n    public-key = "{key.decode()}"\n{secret}')
    (tmp_path / "thief" / "syncer.key").write_bytes((Path(run.config.net.keys) / "syncer.key").read_bytes())
    assert "may not say Hello as eu-0" in ends(alone(run, "eu-0", keys=str(tmp_path / "thief")))


@pytest.mark.net
@pytest.mark.parametrize("road", [2, 3])
def test_who_has_an_invitation_hears_nothing(run: Run, road: int) -> None:
    """Whoever has seen the line would otherwise read what is published, also after it was used."""
    invitation, port = invitation_of(run), run.config.net.port
    with zmq.Context() as context, context.socket(zmq.SUB) as listener:
        listener.setsockopt(zmq.LINGER, 0)
        listener.curve_publickey, listener.curve_secretkey = invitation.pair.public, invitation.pair.secret
        listener.curve_serverkey = invitation.server.encode()
        told = listener.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        listener.connect(f"tcp://127.0.0.1:{port + road}")
        assert told.poll(30_000)
        assert parse_monitor_message(told.recv_multipart())["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        listener.disable_monitor()
        told.close(0)


@pytest.mark.net
def test_a_joiner_that_was_heard_twice_believes_that_it_has_joined(tmp_path: Path) -> None:
    """The second Join came by a key that was used up."""
    joiner = Joiner(an_invitation(), an_invitation().pair)
    yes, no = Joined(run_id="r", settings=()), Unwelcome(reason="key", text="used", fatal=True)
    for message in (Unwelcome(reason="banned", text="wait", fatal=False), yes, no):
        joiner.on_message(SYNCER, message, 0.0)
    assert joiner._answer == yes
    joiner.close()


@pytest.mark.net
def test_who_is_withdrawn_is_out(run: Run, tmp_path: Path) -> None:
    assert run.syncer is not None
    invitation = invitation_of(run)
    join(invitation, tmp_path / "theirs", 30.0)
    trainer = alone(run, "eu-0", keys=str(tmp_path / "theirs"))
    run.until(lambda: trainer.steps > 0, "it trains")
    withdraw(run.config.run.path / "invited", "eu-0")
    run.syncer.look_again()
    assert "does not let this key in" in ends(trainer)


@pytest.mark.net
def test_nobody_there_is_told_after_a_while(free_ports: Callable[[int], int], tmp_path: Path) -> None:
    invitation = an_invitation(host="127.0.0.1", port=free_ports(4))
    with pytest.raises(LinkError, match="no syncer answers"):
        join(invitation, tmp_path / "keys", 0.5)
    assert load_pair(tmp_path / "keys", "eu-0"), "its pair waits for another attempt"
