"""Scenarios as text that people read and tests run: one line for the world, one for each learner, relay and fault.

    # what this story shows
    world seed=7 seconds=30 fragments=2 sync.min_quorum=2
    relay east latency_s=0.08
    learner l0 step_s=0.2 region=east
    at 3.5 kill l0 for 2
    at 5 crash for 1
    expect fenced 1
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zdiloco.errors import ConfigError
from zdiloco.sim.scenario import Scenario, fault_of, learner_of, relay_of, scenario_from_dict, scenario_to_dict

KINDS: dict[str, Callable[[Any], object]] = {"learner": learner_of, "relay": relay_of}
"""Who has a line of its own, and what checks it."""


def scenario_from_text(text: str) -> Scenario:
    """The scenario that a transcript tells. Raises: ConfigError with the number of the line, or the key."""
    found: dict[str, Any] = {"learners": [], "relays": [], "faults": [], "sync": {}, "learner": {}, "expect": {}}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            _read(words, found)
        except ConfigError as error:
            raise ConfigError(f"line {number} of the transcript: {error}") from error
        except (ValueError, IndexError) as error:
            raise ConfigError(f"line {number} of the transcript does not parse: {line.strip()!r} ({error})") from error
    return scenario_from_dict(found)


def _read(words: list[str], found: dict[str, Any]) -> None:
    kind, *rest = words
    if kind == "world":
        for key, value in _pairs(rest):
            section, _, name = key.partition(".")
            place = found[section] if name and section in ("sync", "learner") else found
            _once(place, name if place is not found else key, value)
    elif kind in KINDS:
        plain: dict[str, Any] = {}
        for key, value in [("name", rest[0]), *_pairs(rest[1:])]:
            _once(plain, key, value)
        KINDS[kind](plain)
        found[f"{kind}s"].append(plain)
    elif kind == "at":
        fault = _fault(rest)
        fault_of(fault)
        found["faults"].append(fault)
    elif kind == "expect":
        _once(found["expect"], " ".join(rest[:-1]), int(rest[-1]))
    else:
        raise ValueError(f"a line begins with world, relay, learner, at or expect, not with {kind!r}")


def _once(place: dict[str, Any], key: str, value: Any) -> None:
    if key in place:
        raise ValueError(f"{key!r} comes twice")
    place[key] = value


def _fault(words: list[str]) -> dict[str, Any]:
    fault: dict[str, Any] = {"at_s": float(words[0]), "name": words[1]}
    if len(words) > 3 and words[-2] == "for":
        fault["for_s"] = float(words[-1])
        words = words[:-2]
    if len(words) > 3:
        raise ValueError(f"a fault is 'at SECONDS NAME [WHO] [for SECONDS]', and {words[3]!r} is too much")
    if len(words) > 2:
        fault["who"] = words[2]
    return fault


def _pairs(words: list[str]) -> Iterator[tuple[str, Any]]:
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} is not key=value")
        yield key, text if key == "region" else _value(text)


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def scenario_to_text(scenario: Scenario, title: str = "") -> str:
    """A transcript of a scenario; read back, it is an equal one."""
    plain = scenario_to_dict(scenario)
    lines = [f"# {line}" for line in title.splitlines()]
    single = {key: value for key, value in plain.items() if not isinstance(value, list | dict)}
    settings = {f"{name}.{key}": value for name in ("sync", "learner") for key, value in plain.get(name, {}).items()}
    lines.append(" ".join(["world", *_words({**single, **settings})]))
    for kind in ("relay", "learner"):
        lines += [" ".join([kind, spec.pop("name"), *_words(spec)]) for spec in plain[f"{kind}s"]]
    for fault in sorted(plain["faults"], key=lambda each: float(each.get("at_s", 0.0))):
        words = ["at", repr(fault.get("at_s", 0.0)), fault["name"], fault.get("who", "")]
        words += ["for", repr(fault["for_s"])] if "for_s" in fault else []
        lines.append(" ".join(filter(None, words)))
    lines += [f"expect {branch} {count}" for branch, count in plain.get("expect", {}).items()]
    return "\n".join(lines) + "\n"


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]
