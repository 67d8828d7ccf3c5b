"""One run.toml: what is known is typed, what is not is named, with the nearest key there is."""

import re
from pathlib import Path

import pytest

from zdiloco.config import SECTIONS, RunConfig, describe, from_tree, load, to_toml
from zdiloco.errors import ConfigError

EXAMPLE = Path(__file__).parent.parent / "config" / "run.toml"


def test_the_example_is_the_defaults() -> None:
    assert load(EXAMPLE) == RunConfig()


def test_the_example_documents_every_key() -> None:
    text = EXAMPLE.read_text()
    for key in describe():
        section = text.split(f"[{key.section}]\n", 1)[1].split("\n[", 1)[0]
        assert re.search(rf"^# {re.escape(key.doc)}.*\n{key.name} = ", section, re.M), key.path
        assert not key.unit or f"[{key.unit}]" in section, key.path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    changed = from_tree({"run": {"name": "a-b", "dir": 'x"y\\z'}, "sync": {"gamma": 0.25}, "net": {"insecure": True}})
    path = tmp_path / "run.toml"
    path.write_text(to_toml(changed))
    assert load(path) == changed
    assert changed.sync.gamma == 0.25


def test_every_key_has_a_doc_and_a_type() -> None:
    for key in describe():
        assert key.doc, key.path
        assert key.type in ("whole number", "number", "text", "true or false"), key.path
    assert {key.section for key in describe()} == set(SECTIONS)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"sync": {"min_qorum": 2}}, ["run.toml", "sync.min_qorum", "did you mean sync.min_quorum"]),
        ({"sync": {"port": 2}}, ["sync.port", "did you mean net.port"]),
        ({"snyc": {}}, ["[snyc]", "did you mean [sync]"]),
        ({"zebra": {}}, ["[zebra]", "known are run, sync"]),
        ({"sync": 3}, ["sync is 3", "[sync]"]),
        ({"sync": {"min_quorum": "two"}}, ["sync.min_quorum", "'two'", "whole number"]),
        ({"sync": {"min_quorum": 2.0}}, ["sync.min_quorum", "2.0", "whole number"]),
        ({"sync": {"min_quorum": True}}, ["sync.min_quorum", "True", "whole number"]),
        ({"sync": {"gamma": 1.5}}, ["sync.gamma is 1.5", "0 to 1"]),
        ({"sync": {"gamma": float("nan")}}, ["sync.gamma is nan"]),
        ({"merge": {"method": "sum"}}, ["merge.method is 'sum'", "'rda', 'avg'"]),
        ({"merge": {"robust": "krum"}}, ["merge.robust is 'krum'", "'none', 'clip', 'trim'"]),
        (
            {"merge": {"robust": "trim"}, "relay": {"premerge": True}},
            ["merge.robust is 'trim'", "relay.premerge is true", "relay.premerge to false"],
        ),
        ({"net": {"port": 80}}, ["net.port is 80", "1024"]),
        ({"net": {"listen": "0.0.0.0"}}, ["net.listen is '0.0.0.0'", "net.insecure"]),
        ({"relay": {"listen": "10.2.0.5"}}, ["relay.listen is '10.2.0.5'", "net.insecure"]),
        ({"task": {"preset": "huge"}}, ["huge"]),
        ({"run": {"name": "a b"}}, ["run.name is 'a b'"]),
        ({"learner": {"region": "us east"}}, ["learner.region is 'us east'", "allowed are 1 to 64 letters"]),
        ({"run": {"dir": ""}}, ["run.dir is empty"]),
    ],
)
def test_what_is_wrong_is_named(tree: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_tree(tree, source="run.toml")
    assert not [word for word in ["run.toml", *words] if word not in str(caught.value)], str(caught.value)


def test_whole_numbers_may_stand_for_numbers() -> None:
    assert from_tree({"sync": {"gamma": 1}}).sync.gamma == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("net.listen=127.0.0.1", "127.0.0.1"), ('net.listen = "::1"', "::1"), ("net.listen=localhost", "localhost")],
)
def test_overrides_take_bare_words(text: str, value: str) -> None:
    assert from_tree({}, [text]).net.listen == value


def test_overrides_win_and_come_in_order() -> None:
    config = from_tree({"sync": {"min_quorum": 2}}, ["sync.min_quorum=3", "sync.min_quorum=4", "net.insecure=true"])
    assert config.sync.min_quorum == 4
    assert config.net.insecure is True


@pytest.mark.parametrize(
    "text", ["min_quorum=3", "sync.min_quorum", "sync.min_quorun=3", "sync.min_quorum=x", "=", "q.x=1"]
)
def test_wrong_overrides_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--set {text}")):
        from_tree({}, [text])


def test_a_value_out_of_range_names_the_override_it_came_from() -> None:
    with pytest.raises(ConfigError, match=r"--set sync.gamma=7: sync.gamma is 7"):
        from_tree({"sync": {"min_quorum": 2}}, ["sync.gamma=7"], source="run.toml")
    with pytest.raises(ConfigError, match=r"--set relay.listen=::: relay.listen is '::'"):
        from_tree({}, ["relay.listen=::"], source="run.toml")
    with pytest.raises(ConfigError, match=r"^--set merge.robust=clip: merge.robust is 'clip', and relay.premerge"):
        from_tree({"relay": {"premerge": True}}, ["merge.robust=clip"], source="run.toml")


DAMAGES = {
    "broken": b"[sync\n",
    "binary": b"\xff\xfe\x00",
    "huge": b"#" * 2**21,
    "deep": b"a = " + b"[" * 100_000,
    "long": b"[sync]\nmin_quorum = " + b"9" * 10_000,
}


@pytest.mark.parametrize("damage", ["missing", *DAMAGES])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run.toml"
    if damage != "missing":
        path.write_bytes(DAMAGES[damage])
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load(path)


def test_a_wrong_value_is_shown_as_far_as_it_helps() -> None:
    with pytest.raises(ConfigError) as caught:
        from_tree({}, ["sync.min_quorum=" + "[" * 10_000])
    assert len(str(caught.value).partition(": ")[2]) < 300


def test_only_the_keys_of_an_error_are_blamed() -> None:
    """`name` is also an English word."""
    with pytest.raises(ConfigError, match=r"^--set run.dir=: run.dir is empty; it must name a place$"):
        from_tree({"run": {"name": "x"}}, ["run.dir="], source="run.toml")
    with pytest.raises(ConfigError, match=r"^--set sync.beat_every_s=9, run.toml: "):
        from_tree({"sync": {"suspect_after_s": 2.0}}, ["sync.beat_every_s=9"], source="run.toml")


@pytest.mark.parametrize("host", ["", " ", "a b", "tcp://a", "[::1]", "a\n"])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(ConfigError, match=r"net\.connect is "):
        from_tree({"net": {"connect": host}})


@pytest.mark.parametrize("host", ["10.0.0.5", "node-7.example", "::1", "fe80::1%eth0", "localhost"])
def test_what_is_a_host(host: str) -> None:
    assert from_tree({"net": {"connect": host}}).net.connect == host


@pytest.mark.parametrize(
    "text",
    [
        f"[net]\nport = {'1' * 5000}",
        f"[net]\nport = 0x{'f' * 5000}",
        "x = " + "[" * 5000,
        b"\xff\xfe",
        "[net]\nport = 1e9",
    ],
    ids=["digits", "hexadecimal digits", "deep", "no text", "a float"],
)
def test_what_no_number_or_table_is_names_the_file(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as found:
        load(path)
    assert str(path) in str(found.value)
    assert len(str(found.value)) < 1000


def test_every_text_comes_back_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    config = from_tree({"run": {"dir": 'a\nb\t"c"\\d\x7f\x01 é', "name": "r"}})
    path.write_text(to_toml(config), encoding="utf-8")
    assert load(path) == config
