"""Key files and the list of who may connect: what is made, what is refused, and with which words."""

import datetime
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.wire.examples import EXAMPLES
from zdiloco.cli.main import run
from zdiloco.core.messages import Bundle, Goodbye, Heartbeat, Hello, StatusQuery
from zdiloco.errors import ConfigError
from zdiloco.node.allowed import Allowed, load_allowed
from zdiloco.node.guard import Guard
from zdiloco.node.keys import Keys, keys_of, load_pair, load_public, make_pair
from zdiloco.node.params import NetParams
from zdiloco.units import NO_EPOCH
from zdiloco.wire.transfer import Chunk

TODAY = datetime.date(2027, 3, 1)
GOODBYE = Goodbye(reason="", trained_tokens=0, left_tokens=0.0, dropped_tokens=0.0)
CHUNK = Chunk(transfer="t", index=0, checksum=0)


def hello(name: str, *, watching: bool = False) -> Hello:
    return Hello(name=name, incarnation=1, epoch=NO_EPOCH, run_id="", layout_digest="", watching=watching)


def swap(place: Path) -> None:
    """Put another public key beside a secret one."""
    own = load_public(place.parent, "a").decode()
    make_pair(place.parent, "b")
    place.write_text(place.read_text().replace(own, load_public(place.parent, "b").decode()))


class Lists:
    """Lists in which {a}, {b} and {c} stand for three keys, which are in `keys`."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "allowed.toml"
        for name in "abc":
            make_pair(folder, name)
        self.keys = {name: load_public(folder, name).decode() for name in "abc"}

    def __call__(self, text: str) -> Allowed:
        for name, key in self.keys.items():
            text = text.replace("{" + name + "}", f'"{key}"')
        self.place.write_text(text)
        return load_allowed(self.place)


@pytest.fixture
def allowed_of(tmp_path: Path) -> Lists:
    return Lists(tmp_path)


def test_a_new_pair_is_its_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert run(["keygen", str(folder), "eu.0"]) == 0
    out = capsys.readouterr().out
    public, secret = folder / "eu.0.key", folder / "eu.0.key_secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert "secret-key" not in public.read_text()
    assert load_pair(folder, "eu.0").public == load_public(folder, "eu.0")
    assert load_pair(folder, "eu.0").secret.decode() not in repr(load_pair(folder, "eu.0"))
    (tmp_path / "allowed.toml").write_text(out)
    assert load_allowed(tmp_path / "allowed.toml").name_of(load_public(folder, "eu.0").decode()) == "eu.0"


def test_a_pair_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pair(tmp_path, "a")
    before = (tmp_path / "a.key_secret").read_bytes()
    assert run(["keygen", str(tmp_path), "a"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "a.key_secret").read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda place: place.unlink(), "has no secret key of 'a': zdiloco keygen"),
        (lambda place: place.chmod(0o640), "can be read by others: chmod 600"),
        (lambda place: place.write_text("hello"), "is no key file"),
        (lambda place: place.write_text('public-key = "short"\n'), "a key has 40 characters"),
        (lambda place: place.write_bytes(place.with_suffix(".key").read_bytes()), "holds no secret key"),
        (lambda place: swap(place), "do not belong together"),
    ],
)
def test_a_file_that_is_no_secret_key_is_named(tmp_path: Path, spoil: Callable[[Path], Any], said: str) -> None:
    make_pair(tmp_path, "a")
    place = tmp_path / "a.key_secret"
    mode = stat.S_IMODE(place.stat().st_mode)
    spoil(place)
    assert mode == 0o600
    with pytest.raises(ConfigError, match=said) as caught:
        load_pair(tmp_path, "a")
    assert str(tmp_path) in str(caught.value)


def test_whose_key_is_ours(tmp_path: Path) -> None:
    net = NetParams(keys=str(tmp_path))
    with pytest.raises(ConfigError, match="there is none: zdiloco keygen"):
        keys_of(net, "")
    make_pair(tmp_path, "a")
    with pytest.raises(ConfigError, match="no public key of 'syncer'"):
        keys_of(net, "")
    make_pair(tmp_path, "syncer")
    with pytest.raises(ConfigError, match="there are a, syncer"):
        keys_of(net, "")
    found = keys_of(net, "a")
    assert found is not None
    assert found.server == load_public(tmp_path, "syncer")
    named = keys_of(NetParams(keys=str(tmp_path), key="syncer"), "a")
    assert named is not None
    assert named.own.public == found.server
    assert keys_of(NetParams(), "a") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nobody is in it"),
        ("a = 3", "a is 3; it must be a table"),
        ("[a]\nkey = 'x'", "key is 'x'; copy the 40 characters of a.key"),
        ("[a]\nkey = {a}\nrihgts = []", "unknown field `rihgts`"),
        ("[a]\nkey = {a}\nrights = ['admin']", "Invalid enum value 'admin'"),
        ("[a]\nkey = {a}\nrights = []", "rights is empty"),
        ("[a]\nkey = {a}\nexpires = 'soon'", "expires"),
        ("[a]\nkey = {a}\nnames = ['b']", "belongs to the right relay"),
        ("[a]\nkey = {a}\nrights = ['relay']", "belongs to the right relay"),
        ("[relay]\nkey = {a}", "only a relay has this name"),
        ("[status]\nkey = {a}", "the house's own"),
        ("['-a']\nkey = {a}", "not first a sign"),
        ("[a]\nkey = {a}\n[b]\nkey = {a}", "a and b have the same key"),
        ("[a]\nkey = 3", "Expected `str`, got `int`"),
        ("[a", "is not TOML"),
    ],
)
def test_a_list_that_is_not_right_is_named(allowed_of: Lists, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        allowed_of(text)
    assert said in str(caught.value)
    assert "allowed.toml" in str(caught.value)


def test_without_a_list_nobody_serves(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"net\.allowed says who may connect"):
        load_allowed(tmp_path / "allowed.toml")


def test_who_may_say_what(allowed_of: Lists) -> None:
    allowed = allowed_of(
        "[eu-0]\nkey = {a}\n[office]\nkey = {b}\nrights = ['watch']\n"
        "[gate]\nkey = {c}\nrights = ['relay']\nnames = ['asia-*', 'x']\n"
    )
    a, b, c = (allowed_of.keys[name] for name in "abc")
    beat = Heartbeat(epoch=NO_EPOCH)

    def may(key: str, name: str, message: object) -> bool:
        return allowed.may_say(key, name, message, TODAY)

    assert all(may(a, "eu-0", each) for each in (hello("eu-0"), GOODBYE, CHUNK, beat))
    assert not any(may(a, name, each) for name in ("eu-1", "office", "relay") for each in (hello(name), GOODBYE, CHUNK))
    assert may(b, "office", hello("office", watching=True))
    assert may(b, "office", beat)
    assert not any(may(b, "office", each) for each in (hello("office"), CHUNK))
    assert all(may(c, name, each) for name in ("asia-7", "x", "relay") for each in (hello(name), GOODBYE, CHUNK))
    assert not any(may(c, name, CHUNK) for name in ("eu-0", "xx", "gate"))
    assert all(may(key, "status", StatusQuery()) for key in (a, b, c))
    assert not any(may(key, "status", CHUNK) for key in (a, b, c))
    assert not any(may("", name, StatusQuery()) for name in ("status", "eu-0", ""))


def test_a_bundle_holds_only_what_its_key_may_speak_for(allowed_of: Lists) -> None:
    """A relay with few names cannot bring what others have done, and no contributor a bundle at all."""
    allowed = allowed_of("[eu-0]\nkey = {a}\n[relay]\nkey = {c}\nrights = ['relay']\nnames = ['asia-*']\n")
    bundle = EXAMPLES["bundle"]
    assert isinstance(bundle, Bundle)

    def of(region: str) -> Bundle:
        named = (each._replace(name=f"{region}-{number}") for number, each in enumerate(bundle.members))
        return replace(bundle, members=tuple(named))

    own, others = of("asia"), of("eu")
    relay, contributor = allowed_of.keys["c"], allowed_of.keys["a"]
    assert allowed.may_say(relay, "relay", own, TODAY)
    assert not allowed.may_say(relay, "relay", others, TODAY)
    assert not any(allowed.may_say(contributor, "eu-0", each, TODAY) for each in (own, others))


@pytest.mark.parametrize("changed", [{}, {"expires": "2027-02-28"}, {"expires": "2027-03-01"}])
def test_a_last_day_that_is_put_into_the_past_shuts_out_at_once(
    zctx: zmq.Context[zmq.Socket[bytes]], allowed_of: Lists, changed: dict[str, str]
) -> None:
    text = "[a]\nkey = {a}\n[b]\nkey = {b}\n"
    allowed_of(text)
    pair = load_pair(allowed_of.place.parent, "c")
    guard = Guard(zctx, Keys(pair, pair.public), allowed_of.place, lambda: TODAY)
    allowed_of(text + "".join(f"{key} = {value}\n" for key, value in changed.items()))
    assert guard.reload() == ({"b"} if changed.get("expires") == "2027-02-28" else set())
    guard.close()


def test_the_last_day_is_still_good(allowed_of: Lists) -> None:
    allowed = allowed_of("[a]\nkey = {a}\nexpires = 2027-03-01\n")
    key = allowed_of.keys["a"]
    assert allowed.why_not(key, TODAY) == ""
    assert allowed.why_not(key, TODAY + datetime.timedelta(days=1)) == "the key of a was good until 2027-03-01"
    assert not allowed.may_say(key, "a", GOODBYE, TODAY + datetime.timedelta(days=1))


@pytest.mark.parametrize("more", [{"listen": "0.0.0.0", "keys": "k"}, {"listen": "0.0.0.0", "insecure": True}])
def test_beyond_loopback_it_takes_keys_or_a_word(more: dict[str, Any]) -> None:
    NetParams(**more)
    with pytest.raises(ConfigError, match="choose one"):
        NetParams(**{**more, "insecure": True, "keys": "k"})
