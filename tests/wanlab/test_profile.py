"""Profiles: those that are shipped can be read, and what is wrong in one is a line that names file, key and range."""

from pathlib import Path
from typing import Any

import pytest

from zdiloco.errors import ConfigError
from zdiloco.wanlab.profile import KEYS, Traits, from_tree, load, shipped

SHIPPED = Path(__file__).parent.parent.parent / "config" / "wan"


def tree(**link: Any) -> dict[str, Any]:
    return {"regions": ["a", "b"], "links": {"wan": {"between": ["a", "b"], **link}}}


@pytest.mark.parametrize("name", shipped(SHIPPED))
def test_what_is_shipped_can_be_used(name: str) -> None:
    profile = load(name, SHIPPED)
    assert profile.doc
    assert len(profile.next_hops(profile.regions[-1])) == len(profile.regions) - 1
    assert load(str(SHIPPED / f"{name}.toml"), Path("/nowhere")) == profile


def test_those_that_documents_name_are_there() -> None:
    assert {"us-4-region", "one-link-200mbit-80ms", "four-regions-40mbit"} <= set(shipped(SHIPPED))
    link = load("one-link-200mbit-80ms", SHIPPED).links[0].traits
    assert (link.rate_mbit_s, 2 * link.delay_ms) == (200, 80)


def test_values_bring_their_units() -> None:
    traits = from_tree(tree(rate="1.5gbit", delay="0.1s", jitter="500us", loss="0.1%", queue="20 ms"), "p", "p.toml")
    assert traits.links[0].traits == Traits(
        rate_mbit_s=1500, delay_ms=100, jitter_ms=0.5, loss_percent=0.1, queue_ms=20
    )


def test_what_is_told_is_read() -> None:
    traits = Traits(rate_mbit_s=12.5, delay_ms=40, jitter_ms=2, loss_percent=0.25, queue_ms=50)
    assert Traits().changed(dict(word.split("=") for word in traits.told().split()), "here") == traits


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"rate": "0mbit"}, ["links.wan: rate is '0mbit'", "0.01mbit to 100000mbit"]),
        ({"rate": 200}, ["rate is 200;", "mbit"]),
        ({"rate": "200"}, ["rate is '200'", "mbit"]),
        ({"rate": "200MB"}, ["rate is '200MB'", "kbit, gbit"]),
        ({"rate": "nanmbit"}, ["rate is 'nanmbit'"]),
        ({"delay": "-1ms"}, ["delay is '-1ms'", "0ms to 10000ms (or in us, s)"]),
        ({"delay": "11s"}, ["delay is '11s'", "10000ms"]),
        ({"loss": "101%"}, ["loss is '101%'", "0% to 100%"]),
        ({"loss": "0.1"}, ["loss is '0.1'", "0% to 100%"]),
        ({"queue": "0ms"}, ["queue is '0ms'", "1ms to 10000ms"]),
        ({"delay": "5ms", "jitter": "6ms"}, ["jitter is 6ms", "0ms to the delay, here 5ms"]),
        ({"dealy": "5ms"}, ["unknown key dealy", "rate, delay, jitter, loss, queue"]),
        ({"between": ["a", "c"]}, ["links.wan.between is ['a', 'c']", "two different ones of a, b"]),
        ({"between": ["a", "a"]}, ["links.wan.between"]),
        ({"between": "a"}, ["links.wan.between is 'a'"]),
        ({"between": [1, []]}, ["links.wan.between"]),
    ],
)
def test_a_wrong_link_is_named(value: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_tree(tree(**value), "p", "p.toml")
    assert not [word for word in ["p.toml: ", *words] if word not in str(caught.value)], str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"regions": ["a"]}, ["regions is ['a']", "2 to 16"]),
        ({"regions": ["a", "a"]}, ["regions is", "different"]),
        ({"regions": ["a", "B c"]}, ["regions has 'B c'", "a-z"]),
        ({"regions": "a b"}, ["regions"]),
        ({"regions": ["a", "b", "c"]}, ["no links lead from a to c"]),
        ({"links": {}}, ["links has 0 links", "1 to 64"]),
        ({"links": {"a": {"between": ["a", "b"]}}}, ["links.a is also a region"]),
        ({"links": {"../x": {"between": ["a", "b"]}}}, ["links has '../x'"]),
        ({"links": {"wan": 3}}, ["links"]),
        ({"link": {}}, ["link"]),
    ],
)
def test_a_wrong_profile_is_named(value: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_tree({**tree(), **value}, "p", "p.toml")
    assert not [word for word in ["p.toml: ", *words] if word not in str(caught.value)], str(caught.value)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    for content, words in {
        b"regions = [": "is not TOML",
        b"\xff": "is not UTF-8",
        b"#" * 70_000: "65536 bytes",
    }.items():
        path = tmp_path / "p.toml"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            load(str(path), SHIPPED)
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        load("none.toml", SHIPPED)
    with pytest.raises(ConfigError, match="did you mean us-4-region"):
        load("us-4-regions", SHIPPED)


def test_ways_lead_over_the_least_delay() -> None:
    """a - b is far; over c it is nearer."""
    links = {
        "ab": {"between": ["a", "b"], "delay": "50ms"},
        "ac": {"between": ["a", "c"], "delay": "10ms"},
        "cb": {"between": ["c", "b"], "delay": "10ms"},
    }
    profile = from_tree({"regions": ["a", "b", "c"], "links": links}, "p", "p.toml")
    assert {to: link.name for to, link in profile.next_hops("a").items()} == {"b": "ac", "c": "ac"}
    assert {to: link.name for to, link in profile.next_hops("c").items()} == {"a": "ac", "b": "cb"}


def test_every_key_is_a_trait() -> None:
    assert {key.field for key in KEYS.values()} == set(Traits.__dataclass_fields__)
