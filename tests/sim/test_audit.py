"""The audit can fail: each rule, broken by hand in a world that was well, is found under its name."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from zdiloco.agenda import Broken
from zdiloco.core.progress import Intake, LearnerProgress, Refusal
from zdiloco.core.tables import meanings
from zdiloco.errors import MachineError
from zdiloco.sim.actors import Actor
from zdiloco.sim.chaos import chaos
from zdiloco.sim.fault_names import FaultName
from zdiloco.sim.play import Story, failure, play
from zdiloco.sim.scenario import LearnerSpec, Scenario
from zdiloco.sim.transcript import scenario_from_text


def played() -> Story:
    """A small world after ten good seconds."""
    specs = tuple(LearnerSpec(name=name, step_s=0.1) for name in ("a", "b"))
    story = Story(Scenario(seconds=10.0, learners=specs, sync={"sync_period": 5}))
    story.world.run(10.0)
    story.heal()
    story.world.run(20.0)
    story.audit.settle()
    assert not story.audit.starved()
    return story


def actor_of(story: Story) -> Actor:
    return next(iter(story.world.actors.values()))


def unmerged(story: Story) -> None:
    actor_of(story).machine.duties[0].progress.tokens += 10


def dropped(story: Story) -> None:
    actor_of(story).machine.duties[0].progress.tally.dropped += 10


def nowhere(story: Story) -> None:
    story.world.next_work += 1  # a step that nobody has


def doubled(story: Story) -> None:
    states = story.world.site.body.states
    states[0] = replace(states[0], map=tuple(row._replace(tokens=row.tokens + 10) for row in states[0].map))


def memory(story: Story) -> None:
    story.world.site.machine.intakes.used_bytes = 2**31


def stamps(story: Story) -> None:
    desk = story.world.site.machine.desk.fragments[0]
    desk.stamp = desk.stamp._replace(version=1)


BREAKS: dict[str, Callable[[Story], None]] = {
    "counters": unmerged, "ledger": dropped, "lost": nowhere, "map": doubled, "memory": memory, "stamps fall": stamps,
}  # fmt: skip


AT_THE_END = ("lost", "map")


def look(story: Story, rule: str) -> None:
    """A few events, or the end."""
    if rule in AT_THE_END:
        story.audit.settle()
    else:
        story.world.run(story.world.now + 0.3)


@pytest.mark.parametrize("rule", BREAKS)
def test_what_is_broken_is_found_under_its_name(rule: str) -> None:
    story = played()
    BREAKS[rule](story)
    with pytest.raises(Broken) as caught:
        look(story, rule)
    assert caught.value.rule in ((rule,) if rule != "map" else ("map", "ledger"))


def test_the_rules_that_the_docs_name_are_those_of_the_code() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "simulate.md").read_text()
    named = re.findall(r"^\| ([a-z ]+) \| ", text.partition("### The rules")[2], re.MULTILINE)[1:]
    places = [*sorted((root / "zdiloco" / "sim").glob("*.py")), root / "zdiloco" / "agenda.py"]
    files = [path.read_text() for path in places]
    raised = {rule for file in files for rule in re.findall(r'raise Broken\("([^"]+)"', file)}
    assert named == sorted(raised - {"not in time"}), "that one is of tests that wait"
    faults = re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", text.partition("The faults are:")[2], re.MULTILINE)
    said = meanings(FaultName)
    assert faults == [(str(name), said[name.name]) for name in FaultName]


def test_the_scenario_that_the_docs_show_can_be_played() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    shown = text.partition("### How to write one")[2].partition("    # ")[2].partition("\n\n")[0]
    assert play(scenario_from_text("# " + shown)).seen["fault: kill"] == 1


def test_somebody_who_starves_is_named() -> None:
    story = played()
    actor = actor_of(story)
    story.audit.calm_since = story.world.now
    actor.site = None
    story.world.run(story.world.now + 15.0)
    assert story.audit.starved() == [actor.key.name]


def without_after(self: Intake, key: object, message: object, epoch: object) -> Refusal | None:
    """The rule of exactly once, without its heart."""
    return None if message.stamp.epoch == epoch else Refusal.EPOCH


def forgetful(self: LearnerProgress, stable: object) -> tuple[int, ...]:
    """Whatever is merged is taken for durable."""
    gone = tuple(self.kept)
    self.kept.clear()
    return gone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [(Intake, "judge", without_after), (LearnerProgress, "on_stable", forgetful)],
    ids=["after", "kept"],
)
def test_a_broken_rule_of_the_core_is_caught_by_chaos(
    owner: type, name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    found: MachineError | None = None
    for seed in range(50):
        found = found or failure(chaos(seed))
    assert found is not None
