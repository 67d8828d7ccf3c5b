"""Kept stories: each transcript is played to its end, with every check; the faults of the past stay found."""

from pathlib import Path

import pytest

from zdiloco.errors import ConfigError
from zdiloco.sim.chaos import chaos
from zdiloco.sim.play import play
from zdiloco.sim.transcript import scenario_from_text, scenario_to_text

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.txt"))


@pytest.mark.parametrize("path", [*TRANSCRIPTS, *EXAMPLES], ids=lambda path: path.stem)
def test_a_kept_story_ends_well(path: Path) -> None:
    play(scenario_from_text(path.read_text()))


def test_there_are_kept_stories() -> None:
    assert len(TRANSCRIPTS) >= 6
    assert len(EXAMPLES) >= 2
    assert all(path.read_text().startswith("# ") for path in [*TRANSCRIPTS, *EXAMPLES]), "each says what it shows"


@pytest.mark.parametrize("seed", range(20))
def test_a_scenario_and_its_text_are_the_same(seed: int) -> None:
    scenario = chaos(seed)
    assert scenario_from_text(scenario_to_text(scenario, "a title\nof two lines")) == scenario


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("lerner l0", "line 2 of the transcript does not parse: 'lerner l0'"),
        ("at soon kill l0", "line 2 of the transcript does not parse: 'at soon kill l0'"),
        ("world seed", "'seed' is not key=value"),
        ("at 3", "line 2"),
        ("expect rounds many", "line 2"),
        ("world steps=3", "scenario has no key 'steps'"),
        ("at 3 kil l0", "did you mean 'kill'?"),
        ("at 3 kil l0", "line 2 of the transcript: no fault is called 'kil'"),
        ("at 3 kill l0 now", "line 2 of the transcript does not parse: 'at 3 kill l0 now'"),
        ("learner l1 loss=2", "line 2 of the transcript: learner l1: loss is 2; allowed is 0 to 0.9"),
        ("learner l1 loss=0 loss=0.1", "'loss' comes twice"),
        ("world seed=1 seed=2", "'seed' comes twice"),
        ("world sync.gamma=0 sync.gamma=1", "'gamma' comes twice"),
        ("world fragments=1.5", "world: fragments is 1.5; allowed is 1 to 511, a whole number"),
        ("world exact=maybe", "world: exact is 'maybe'; allowed is true or false"),
        ("world sinc.gamma=0", "scenario has no key 'sinc.gamma'"),
        ("relay east loss=2", "line 2 of the transcript: relay east: loss is 2; allowed is 0 to 0.9"),
        ("relay", "line 2"),
        ("learner l1 step=3", "learners has no key 'step'; did you mean 'step_s'?"),
    ],
)
def test_a_line_that_says_nothing_is_named(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario_from_text(f"learner l0\n{line}\n")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
