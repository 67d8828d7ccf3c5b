"""A relay that merges what its region contributes, between a real syncer and real learners."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.node.conftest import Run, Trainer
from tests.node.relays import Region, Regions
from tests.node.test_loopback import assert_balanced, crash
from zdiloco.node import relay
from zdiloco.node.premerge import Premerge, Terms
from zdiloco.wire import lane_life

pytestmark = pytest.mark.net
MakeRun = Callable[..., Run]
NAMES = ("a", "b", "c")


class Scene:
    """A run whose learners dial one relay that merges."""

    def __init__(self, run: Run, region_of: Regions, terms: Terms) -> None:
        self.run = run
        self.syncer = run.start_syncer()
        self.region: Region = region_of(run.config.net, terms=terms, premerge=True)
        self.trainers = [self.join(name) for name in NAMES]

    def join(self, name: str) -> Trainer:
        trainer = Trainer(replace(self.run.config, net=self.region.behind), name, seed=len(self.run.trainers))
        self.run.trainers.append(trainer)
        return trainer

    @property
    def premerge(self) -> Premerge:
        assert self.region.relay.premerge is not None
        return self.region.relay.premerge

    @property
    def taken(self) -> int:
        """Bundles that were held whole."""
        return self.syncer.machine.intakes.bundles.counts["taken"]

    def merged(self, name: str) -> int:
        """Tokens of a learner in the fragment that has the fewest of them."""
        states = self.syncer.body.states.values()
        return min((sum(e.tokens for e in state.map_.values() if e.name == name) for state in states), default=0)

    def merged_again(self) -> None:
        """Wait until work of everybody is merged that was made from now on."""
        trained = {trainer.name: 4 * trainer.steps for trainer in self.trainers}
        for name, tokens in trained.items():
            self.run.until(lambda n=name, t=tokens: self.merged(n) > t, f"merged work of {name}")

    def end(self) -> None:
        """Everybody leaves; every token has one fate, and nothing is kept at the relay for anybody."""
        for trainer in self.trainers:
            trainer.stop()
            assert trainer.error is None
        self.run.stop_syncer()
        assert_balanced(self.run.config.run.path, self.syncer)


@pytest.fixture
def scene_of(run_of: MakeRun, region_of: Regions) -> Callable[..., Scene]:
    """scene_of(sections of the settings) -> a run with a relay that merges. `premerge`: whether its syncer takes that;
    `theirs`, `merged_by`: what the relay has otherwise in its own settings."""

    def make(
        premerge: bool = True, theirs: dict[str, Any] | None = None, merged_by: str = "rda", **sections: Any
    ) -> Scene:
        run = run_of(**{"relay": {"premerge": premerge}, **sections})
        merge, sync = replace(run.config.merge, method=merged_by), replace(run.config.sync, **(theirs or {}))
        return Scene(run, region_of, Terms(merge, sync))

    return make


def test_a_region_is_merged_before_it_crosses_and_every_token_has_one_fate(
    scene_of: Callable[..., Scene], say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_life, "BRIEF_S", 0.2)  # lanes of those who took leave are closed so soon
    monkeypatch.setattr(relay, "SWEEP_S", 0.05)
    scene = scene_of(sync={"min_quorum": 3})
    scene.run.until(lambda: scene.taken >= 5, "five bundles")
    scene.merged_again()
    bundles, status = scene.syncer.machine.intakes.bundles, scene.premerge.status()
    say(f"{bundles.counts} taken, refused {bundles.refused}; at the relay {status}")
    assert bundles.counts["members"] >= 2 * bundles.counts["taken"]
    assert not {"weight", "body", "off"} & set(bundles.refused)
    scene.end()
    scene.run.until(lambda: scene.premerge.bundling.entries == {}, "nothing that is kept for anybody")
    assert scene.premerge.kept_bytes == 0
    records = [json.loads(line) for line in (scene.run.config.run.path / "journal.jsonl").read_text().splitlines()]
    arrived = {(one["who"], one["fragment"], one["seq"]) for one in records if one["kind"] == "arrived"}
    merges = [one for one in records if one["kind"] == "merge"]
    merged = {(who, one["fragment"], seq) for one in merges for who, *_, seq, _ in one["members"]}
    assert merged
    assert merged <= arrived, "the journal tells of each contribution, whatever it came in"


def weighed_otherwise(scene_of: Callable[..., Scene]) -> tuple[Scene, str]:
    return scene_of(sync={"min_quorum": 3}, theirs={"weight": "uniform"}), "weight"


def merged_otherwise(scene_of: Callable[..., Scene]) -> tuple[Scene, str]:
    return scene_of(sync={"min_quorum": 3}, merged_by="avg"), "body"


def taken_by_nobody(scene_of: Callable[..., Scene]) -> tuple[Scene, str]:
    return scene_of(premerge=False, sync={"min_quorum": 3}), "off"


@pytest.mark.slow
@pytest.mark.parametrize("make", [weighed_otherwise, merged_otherwise, taken_by_nobody])
def test_what_the_syncer_refuses_goes_up_one_by_one(make: Any, scene_of: Callable[..., Scene]) -> None:
    scene, reason = make(scene_of)
    scene.run.until(lambda: reason in scene.syncer.machine.intakes.bundles.refused, "a refusal")
    scene.merged_again()
    assert scene.taken == 0 or reason == "body", "buffers are merged alike whatever the method"
    assert scene.premerge.off == (reason == "off")
    scene.end()


def relay_dies(scene: Scene) -> None:
    scene.region.stop(crash=True)
    scene.region.start()


def learner_leaves(scene: Scene) -> None:
    coming = next(iter(scene.syncer.machine.intakes.bundles.coming.values()))
    victim = next(t for t in scene.trainers if t.name == coming.message.members[0].name)
    scene.trainers.remove(victim)
    victim.stop()


def syncer_dies(scene: Scene) -> None:
    crash(scene.run)
    scene.syncer = scene.run.start_syncer()


@pytest.mark.slow
@pytest.mark.parametrize("what", [relay_dies, learner_leaves, syncer_dies])
def test_whatever_happens_while_a_bundle_is_awaited_all_is_merged(
    what: Callable[[Scene], None], scene_of: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(sync={"min_quorum": 2}, net={"give_up_s": 2.0})
    scene.run.until(lambda: scene.taken >= 1, "a bundle")
    with monkeypatch.context() as patched:  # bundles are offered and taken, and their bytes do not come
        patched.setattr(Premerge, "_serve", lambda self, credit, now: None)
        scene.run.until(lambda: bool(scene.syncer.machine.intakes.bundles.coming), "a bundle that is awaited")
        what(scene)
    before = scene.taken
    scene.merged_again()
    scene.run.until(lambda: scene.taken > before, "bundles again")
    scene.end()
