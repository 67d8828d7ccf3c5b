"""A learner that died comes back over real sockets: as a new incarnation, with its own inner state, chance and data."""

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.node.conftest import Run, tiny_model
from zdiloco.core.machine import Finish
from zdiloco.errors import ConfigError
from zdiloco.node.learner import LearnerNode
from zdiloco.node.lifetime import Lifetime
from zdiloco.rundir.counters import lifetime_steps, read_counters
from zdiloco.rundir.saved import INNER, SavedStates

pytestmark = pytest.mark.net
MakeRun = Callable[..., Run]
PHASES = [
    "state read", "connected", "welcomed", "values loaded", "inner state restored", "first step",
    "first contribution sent", "first contribution merged",
]  # fmt: skip


class Walk:
    """Data that are their own numbers: batch n is n. `seen` is shared by all processes of a name."""

    def __init__(self, seen: list[int]) -> None:
        self.at, self.seen = 0, seen

    def next(self) -> int:
        self.at += 1
        self.seen.append(self.at)
        return self.at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Player:
    """A training loop in the test's own thread, one step at a time. `kind`: of the inner optimizer."""

    def __init__(self, run: Run, name: str, seen: list[int], kind: type[torch.optim.Optimizer] = torch.optim.AdamW):
        self.model = tiny_model(len(seen))
        self.optimizer = kind(self.model.parameters(), lr=1e-3)
        self.walk, self.run = Walk(seen), run
        self.node = LearnerNode(self.model, self.optimizer, run.config, name=name, stateful={"walk": self.walk})
        self.walk.at += self.node.resumed.steps_since

    def step(self) -> None:
        x = torch.full((4, 8), float(self.walk.next() % 7)) + torch.randn(4, 8)
        loss = ((self.model(x) - x.flip(1)) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.node.step(4)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Step until a condition holds."""
        pause = threading.Event()

        def act() -> bool:
            if condition():
                return True
            self.step()
            pause.wait(0.001)
            return False

        self.run.until(act, what)

    def die(self) -> None:
        """End as a killed process does: nothing is saved any more."""
        self.node._lifetime.now_leave = lambda save: None
        self.node.close()

    @property
    def saver(self) -> Any:
        return self.node._lifetime._saver


@pytest.fixture
def play(run_of: MakeRun) -> Iterator[Callable[..., Player]]:
    players: list[Player] = []

    def make(run: Run, name: str, seen: list[int], **more: Any) -> Player:
        players.append(Player(run, name, seen, **more))
        return players[-1]

    yield make
    for player in players:
        player.node.close()


def run_with_a_peer(run_of: MakeRun, **learner: Any) -> Run:
    run = run_of(learner={"silent_after_s": 1.0, "answer_timeout_s": 0.5, "save_every_s": 0.05, **learner})
    run.start_syncer()
    run.join("peer")
    return run


def test_the_dead_comes_back_with_its_own_state_and_reads_nothing_twice(
    run_of: MakeRun, play: Callable[..., Player], say: Callable[[str], None]
) -> None:
    """User case D-57, and the phases of B-29."""
    run, seen = run_with_a_peer(run_of), []
    first = play(run, "a", seen)
    assert (first.node.resumed.step, first.node.resumed.restored, first.node.resumed.steps_since) == (0, (), 0)
    first.until(lambda: first.saver.saves >= 2, "two saves")
    first.saver._every_s = 0.0  # from here on nothing more is saved
    for _ in range(9):
        first.step()
    first.run.until(lambda: not first.saver._busy, "the saver to come to rest")
    saved = SavedStates(run.config.run.path, "a").read()
    assert saved
    made = first.walk.at
    assert made == lifetime_steps(run.config.run.path, "a")
    first.die()

    second = play(run, "a", seen)
    resumed = second.node.resumed
    assert second.node.key.incarnation != first.node.key.incarnation
    assert (resumed.step, resumed.saved_step, resumed.steps_since) == (made, saved.about.step, made - saved.about.step)
    assert resumed.restored == (INNER, "random", "walk")
    assert same_inner(second.optimizer.state_dict(), saved.parts[INNER])
    assert torch.equal(torch.get_rng_state(), saved.parts["random"]["torch"])
    second.until(lambda: "first contribution merged" in second.node.resumed.seconds, "its work is merged again")
    assert seen == list(range(1, len(seen) + 1))
    assert [*second.node.resumed.seconds] == PHASES
    shown = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in second.node.resumed.seconds.items())
    say(
        f"a learner's return on loopback: {resumed.steps_since} steps since its state was saved, 0 read twice; "
        f"{shown} s"
    )
    counted = read_counters(second.node._counters.path)
    assert (counted.base, counted.lifetime_step) == (made, len(seen))


def same_inner(one: Any, other: Any) -> bool:
    pairs = [(one["state"][key], other["state"][key]) for key in one["state"]]
    return bool(pairs) and all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


def test_who_leaves_in_order_goes_on_where_it_stood(run_of: MakeRun, play: Callable[..., Player]) -> None:
    run, seen = run_with_a_peer(run_of, save_every_s=1000.0), []
    first = play(run, "a", seen)
    for _ in range(20):
        first.step()
    first.node.close()
    inner, chance = copy.deepcopy(first.optimizer.state_dict()), torch.get_rng_state()
    torch.rand(5)
    second = play(run, "a", seen)
    assert second.node.resumed.steps_since == 0
    assert same_inner(second.optimizer.state_dict(), inner)
    assert second.walk.at == 20
    assert torch.get_rng_state().shape == chance.shape


def test_who_hears_that_the_run_is_over_before_it_is_welcome_just_ends(
    run_of: MakeRun, play: Callable[..., Player], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-63: it knows no run yet, and takes its own saved state for nobody else's."""
    run, seen = run_with_a_peer(run_of), []
    first = play(run, "a", seen)
    first.until(lambda: first.saver.saves >= 1, "a save")
    first.node.close()
    assert SavedStates(run.config.run.path, "a").read()
    over = Finish(reason="the target is reached", finished=True)
    monkeypatch.setattr(LearnerNode, "_wait_to_join", lambda node: setattr(node, "_finish", over))
    second = play(run, "a", seen)
    assert second.node.finished
    assert second.node.resumed.restored == ()


def test_a_fresh_optimizer_where_that_is_asked_for(run_of: MakeRun, play: Callable[..., Player]) -> None:
    run, seen = run_with_a_peer(run_of, warm_start="none"), []
    first = play(run, "a", seen)
    for _ in range(5):
        first.step()
    first.node.close()
    second = play(run, "a", seen, kind=torch.optim.SGD)
    assert second.node.resumed.restored == ("random", "walk")
    assert not second.optimizer.state
    assert second.walk.at == 5


def test_the_state_of_another_is_refused_with_the_reason(
    run_of: MakeRun, play: Callable[..., Player], monkeypatch: pytest.MonkeyPatch
) -> None:
    """User case D-59: another optimizer, another run, a damaged file, each said before a step is made."""
    run, seen = run_with_a_peer(run_of), []
    first = play(run, "a", seen)
    first.step()
    first.node.close()
    with pytest.raises(
        ConfigError, match=r"is of torch\.optim\.adamw\.AdamW, this is torch\.optim\.sgd\.SGD.*warm_start"
    ):
        play(run, "a", seen, kind=torch.optim.SGD)
    with monkeypatch.context() as patched:
        patched.setattr(Lifetime, "now_restore", lambda self, run_id: REAL_RESTORE(self, "another-1"))
        with pytest.raises(ConfigError, match=r"is of run run-.*, but the syncer's is another-1: remove it"):
            play(run, "a", seen)
    for path in SavedStates(run.config.run.path, "a").files():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"a cannot go on from its saved state: .*damaged.*; remove it to start over"):
        play(run, "a", seen)


REAL_RESTORE = Lifetime.now_restore


def test_parts_that_cannot_be_parts_are_refused(run_of: MakeRun) -> None:
    run, model = run_of(), tiny_model(0)
    optimizer = torch.optim.SGD(model.parameters())
    for stateful, says in (
        ({"optimizer": Walk([])}, "has the key 'optimizer'"),
        ({"a.b": Walk([])}, r"has the key 'a\.b'"),
        ({"data": object()}, r"stateful\['data'\] is a object, without state_dict"),
    ):
        with pytest.raises(ConfigError, match=says):
            LearnerNode(model, optimizer, run.config, name="a", stateful=stateful)


def test_a_poisoned_learner_goes_on_with_its_last_finite_inner_state(
    run_of: MakeRun, play: Callable[..., Player], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = run_with_a_peer(run_of), []
    player = play(run, "a", seen)
    given: list[Any] = []
    load = player.optimizer.load_state_dict
    monkeypatch.setattr(player.optimizer, "load_state_dict", lambda state: (given.append(state), load(state)))
    player.until(lambda: player.saver.saves >= 2, "two saves")
    good = SavedStates(run.config.run.path, "a").read()
    assert good
    before, steps = player.node.key, len(seen)
    with torch.no_grad():
        for parameter in player.model.parameters():
            parameter.fill_(float("nan"))
    player.until(lambda: player.node.key != before, "a new incarnation")
    player.until(lambda: given, "its inner state")
    states = given[0]["state"].values()
    assert all(bool(torch.isfinite(each["exp_avg"]).all()) for each in states)
    assert int(good.parts[INNER]["state"][0]["step"]) <= int(given[0]["state"][0]["step"]) <= steps
    player.until(lambda: player.node.machine.ready and not player.saver._busy, "its return")
    assert lifetime_steps(run.config.run.path, "a") == len(seen)
