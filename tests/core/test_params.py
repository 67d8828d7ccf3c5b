"""The knobs: documented, bounded, and refused by name with what is allowed."""

import dataclasses
from typing import Any

import pytest

from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.errors import ConfigError
from zdiloco.knobs import plain

SECTIONS = {"sync": SyncParams, "learner": LearnerParams}
KNOBS = [(section, field) for section, owner in SECTIONS.items() for field in dataclasses.fields(owner)]


@pytest.mark.parametrize(("section", "field"), KNOBS, ids=lambda part: getattr(part, "name", part))
def test_every_knob_says_what_it_means_and_in_which_unit(section: str, field: dataclasses.Field[Any]) -> None:
    assert field.kw_only
    assert len(field.metadata["doc"]) > 15
    expected = {"_s": "s", "_bytes": "bytes", "_steps": "steps", "_tokens": "tokens"}
    for ending, unit in expected.items():
        if field.name.endswith(ending):
            assert field.metadata["unit"] == unit


def test_the_defaults_are_those_of_the_design() -> None:
    sync, learner = SyncParams(), LearnerParams()
    assert (sync.sync_period, sync.min_quorum, sync.gamma, sync.average) == (24, 1, 0.5, 0.125)
    assert (sync.grace, sync.on_lost_quorum, sync.weight) == ("adaptive", "wait", "tokens2_per_step")
    assert (sync.report_every_s, sync.beat_every_s) == (0.1, 1.0)
    assert (sync.suspect_after_s, sync.gone_after_s, sync.park_after_s) == (3.0, 6.0, 30.0)
    assert (learner.codec, learner.adopt, learner.max_unmerged_steps) == ("bf16", "carry", 0)


RANGES: list[tuple[str, str, tuple[float, float], tuple[float, ...]]] = [
    ("sync", "min_quorum", (1, 1_000_000), (0, 1_000_001)),
    ("sync", "sync_period", (1, 1_000_000), (0, -3)),
    ("sync", "num_fragments", (0, 511), (-1, 512)),
    ("sync", "gamma", (0, 1), (-0.1, 1.1, float("nan"))),
    ("sync", "adaptive_period_max", (0, 1_000_000), (-1, 1_000_001)),
    ("sync", "adaptive_quorum_max", (0, 1_000_000), (-1, 1_000_001)),
    ("sync", "adaptive_grace_max", (0, 1, 0.5), (-0.1, 1.1, float("nan"))),
    ("sync", "average", (0.001, 1), (0.0, 1.1)),
    ("sync", "clip", (1, 1e6, 0), (0.5, 1e7, -1.0, float("nan"))),
    ("sync", "max_step_tokens", (1, 2**53), (0, 2**53 + 1)),
    ("sync", "loan_bytes", (0, 2**50), (-1, 2**50 + 1)),
    ("sync", "budget_bytes", (2**16, 2**50), (2**16 - 1, 2**50 + 1)),
    ("sync", "park_after_s", (0.001, 1e7), (0.0, 1e8, float("nan"))),
    ("sync", "report_every_s", (0, 3600), (-1.0, 3601.0)),
    ("sync", "drain_s", (0.001, 1e7), (0.0, 1e8)),
    ("learner", "give_up_after_s", (0.0, 1e9), (-1.0, 1e10)),
    ("sync", "recover_wait_s", (0, 1e7), (-1.0, 1e8)),
    ("sync", "checkpoint_every_s", (0.001, 1e7), (0.0, 1e8)),
    ("learner", "blend", (0, 1), (-0.1, 1.1)),
    ("learner", "kept_max_bytes", (0, 2**60), (-1, 2**60 + 1)),
    ("learner", "max_unmerged_steps", (0, 2**53), (-1, 2**53 + 1)),
    ("learner", "answer_timeout_s", (0.01, 1e6), (0.0, 1e7)),
    ("learner", "silent_after_s", (0.01, 1e6), (0.0, 1e7)),
    ("learner", "max_uplink", (1, 4096), (0, 4097)),
    ("learner", "save_every_s", (0, 1e6), (-0.1, 1e7)),
]


@pytest.mark.parametrize(("section", "name", "good", "bad"), RANGES, ids=[f"{r[0]}.{r[1]}" for r in RANGES])
def test_ranges(section: str, name: str, good: tuple[float, ...], bad: tuple[float, ...]) -> None:
    owner = SECTIONS[section]
    for value in good:
        assert getattr(owner(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(ConfigError, match=f"^{section}.{name} is .*; allowed is {plain(good[0])} to "):
            owner(**{name: value})


@pytest.mark.parametrize("name", ["beat_every_s", "suspect_after_s", "gone_after_s"])
def test_the_times_of_liveness_are_bounded_too(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^sync.{name} is 0; allowed is 0.001 to 10000000"):
        SyncParams(**{name: 0})


@pytest.mark.parametrize(
    "times", [(3.0, 3.0, 6.0), (1.0, 6.0, 5.0), (7.0, 3.0, 6.0)], ids=["no beat in time", "gone first", "slow beats"]
)
def test_silence_must_be_longer_than_a_beat_and_grow(times: tuple[float, float, float]) -> None:
    fields = dict(zip(("beat_every_s", "suspect_after_s", "gone_after_s"), times, strict=True))
    with pytest.raises(ConfigError, match=r"must hold$"):
        SyncParams(**fields)


def test_suspect_and_gone_may_be_the_same_moment() -> None:
    assert SyncParams(suspect_after_s=6.0).gone_after_s == 6.0


CHOICES = {
    ("sync", "grace"): ("adaptive", "off"),
    ("sync", "on_lost_quorum"): ("wait", "degrade"),
    ("sync", "when_alone"): ("wait", "stop"),
    ("sync", "weight"): ("tokens2_per_step", "tokens", "uniform"),
    ("learner", "codec"): ("fp32", "bf16", "int8", "4bit", "auto"),
    ("learner", "adopt"): ("carry", "overwrite", "blend"),
    ("learner", "strategy"): ("balanced", "strided", "layer"),
    ("learner", "warm_start"): ("own", "peer", "none"),
}


@pytest.mark.parametrize(("section", "name"), list(CHOICES), ids=lambda part: part)
def test_choices_are_named_with_all_that_is_allowed(section: str, name: str) -> None:
    words = CHOICES[section, name]
    for word in words:
        assert getattr(SECTIONS[section](**{name: word}), name) == word
    with pytest.raises(ConfigError) as caught:
        SECTIONS[section](**{name: "nonsense"})
    assert str(caught.value).startswith(f"{section}.{name} is 'nonsense'; allowed is ")
    assert all(repr(word) in str(caught.value) for word in words)


def test_a_region_is_a_name_or_none() -> None:
    assert LearnerParams(region="us-east.1").region == "us-east.1"
    assert LearnerParams().region == ""
    for wrong in ("us east", "-a", "a" * 65, "$a$", "a\n"):
        with pytest.raises(ConfigError, match=r"^learner\.region is .*; allowed are 1 to 64 letters"):
            LearnerParams(region=wrong)


def test_every_knob_is_checked() -> None:
    """A knob that no test above turns would be one without a bound."""
    seen = {(section, name) for section, name, _, _ in RANGES} | set(CHOICES)
    seen |= {("sync", name) for name in ("adaptive", "beat_every_s", "suspect_after_s", "gone_after_s")}
    seen |= {("learner", "region")}
    assert seen == {(section, field.name) for section, field in KNOBS}


def test_params_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SyncParams().min_quorum = 2
