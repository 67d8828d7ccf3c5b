"""The outermost cases of a model through `zdiloco.Learner` and a syncer over loopback: what travels, what stays.

Every learner is driven by the thread of the test, in turn, so that two share a loop and nothing depends on a third.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.node.zoo import KINDS, WIDTH, Frozen, Tied, Zoo, line
from zdiloco.api import Learner
from zdiloco.core.ledger import settle
from zdiloco.errors import ConfigError
from zdiloco.rundir.counters import read_counters

pytestmark = pytest.mark.net
LIMIT_S = 90.0
PACE_S = 0.002


def batch(seed: int, step: int) -> Tensor:
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1000 * seed + step))


def turned_about(model: nn.Module, seed: int, step: int) -> tuple[Tensor, int]:
    """The loss of a batch, whose columns the model should learn to turn about, and its tokens."""
    x = batch(seed, step)
    return (model(x) - x.flip(1)).square().mean(), len(x)


class Party:
    """Learners that train in turn, each on data of its own."""

    def __init__(self, run: Any, stack: ExitStack) -> None:
        self.run = run
        self.syncer = run.start_syncer()
        self._stack = stack
        self._optimizers: dict[Learner, tuple[nn.Module, torch.optim.Optimizer]] = {}
        self._pause = threading.Event()
        self.loss = turned_about
        self.steps = 0

    @property
    def learners(self) -> list[Learner]:
        return list(self._optimizers)

    def join(self, model: nn.Module, name: str, optimizer: torch.optim.Optimizer | None = None) -> Learner:
        optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        learner = self._stack.enter_context(Learner(model, optimizer, self.run.config, name=name))
        self._optimizers[learner] = model, optimizer
        return learner

    def train(self, until: Callable[[], bool], what: str) -> None:
        """Steps of everybody in turn, until something holds."""
        ends = time.monotonic() + LIMIT_S
        while not until():
            assert time.monotonic() < ends, f"never came: {what}"
            for seed, (learner, (model, optimizer)) in enumerate(self._optimizers.items()):
                loss, tokens = self.loss(model, seed, self.steps)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                learner.step(tokens=tokens)
            self.steps += 1
            self._pause.wait(PACE_S)

    def versions(self) -> list[int]:
        return [state.stamp.version for _, state in sorted(self.syncer.body.states.items())]

    def train_versions(self, count: int) -> None:
        """Train until every fragment has so many versions, and work of everybody is in each."""
        keys = {learner.key for learner in self.learners}

        def there() -> bool:
            states = list(self.syncer.body.states.values())
            return min(self.versions()) >= count and all(keys <= set(state.map_) for state in states)

        self.train(there, f"version {count} of every fragment with the work of all")

    def assert_balanced(self) -> None:
        for path in sorted((self.run.config.run.path / "learners").glob("*.counters")):
            counters = read_counters(path)
            for index, row in enumerate(counters.rows):
                entry = self.syncer.body.states[index].map_.get(counters.key)
                merged = (entry.seq, entry.tokens) if entry else (0, 0)
                assert settle(counters.trained_tokens, row, *merged, "left" if counters.left else "dead").gap == 0


@pytest.fixture
def party(run_of: Callable[..., Any]) -> Iterator[Callable[..., Party]]:
    """Makes parties of runs: party(sync={...}); the learners leave, then the syncer ends."""
    with ExitStack() as stack:
        yield lambda **sections: Party(run_of(**sections), stack)


def travelling(learner: Learner) -> list[Tensor]:
    return [learner._body._binding.gather(index) for index in range(len(learner.layout.fragments))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_odd_model_trains_and_all_learners_begin_alike(party: Callable[..., Party], kind: str) -> None:
    """C-31, C-43, C-45: one fragment a tensor, 4 bits up; later learners begin with the published bytes."""
    here = party(sync={"num_fragments": 0}, learner={"codec": "4bit"})
    models = [Zoo(KINDS[kind], seed) for seed in range(2)]
    first = here.join(models[0], "a")
    addresses = [p.data_ptr() for p in models[0].parameters()]
    begun = [values.clone() for values in travelling(first)]
    here.join(models[1], "b")
    here.train_versions(3)
    moved = [not torch.equal(x, y) for x, y in zip(begun, travelling(first), strict=True)]
    assert all(moved[i] for i, f in enumerate(first.layout.fragments) if f.numel and not f.is_buffers)
    assert [p.data_ptr() for p in models[0].parameters()] == addresses, "everything is changed in place"
    assert all(bool(torch.isfinite(p).all()) for model in models for p in model.parameters())
    for learner in here.learners:
        learner.close()
    late = [here.join(Zoo(KINDS[kind], 7 + seed), name) for seed, name in enumerate(("c", "d"))]
    assert all(torch.equal(x, y) for x, y in zip(*map(travelling, late), strict=True))
    for learner in late:
        learner.close()
    here.assert_balanced()


def test_of_a_frozen_model_only_what_is_trained_travels(party: Callable[..., Party]) -> None:
    """C-45: 90 % of the elements are frozen: they are in no fragment, cost nothing, and stay each learner's own."""
    here = party()
    models = [Zoo(Frozen, seed) for seed in range(2)]
    kept = [{n: p.detach().clone() for n, p in m.named_parameters() if not p.requires_grad} for m in models]
    learners = [here.join(model, name) for model, name in zip(models, "ab", strict=True)]
    here.train_versions(2)
    trained = sum(p.numel() for p in models[0].parameters() if p.requires_grad)
    assert sum(learners[0].layout.numels) == trained < 0.11 * sum(p.numel() for p in models[0].parameters())
    assert sum(state.theta.numel() for state in here.syncer.body.states.values()) == trained
    for model, before in zip(models, kept, strict=True):
        assert all(torch.equal(dict(model.named_parameters())[name], values) for name, values in before.items())


def test_tied_weights_travel_once_and_stay_tied(party: Callable[..., Party]) -> None:
    here = party()
    models = [Zoo(Tied, seed) for seed in range(2)]
    learners = [here.join(model, name) for model, name in zip(models, "ab", strict=True)]
    here.train_versions(2)
    assert learners[0].layout.ties == (("odd.one.weight", "odd.two.weight"),)
    names = [tensor.name for tensor in learners[0].layout.tensors]
    assert names.count("odd.one.weight") == 1
    assert "odd.two.weight" not in names
    assert all(model.odd.one.weight is model.odd.two.weight for model in models)


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> int:
    """One step of the optimizer, with the gradients of four batches; returns the tokens of all."""
    optimizer.zero_grad()
    found = [turned_about(model, micro, step) for micro in range(4)]
    for loss, _ in found:
        (loss / 4).backward()
    optimizer.step()
    return sum(tokens for _, tokens in found)


def test_a_step_is_one_of_the_optimizer_however_many_batches_it_gathers(party: Callable[..., Party]) -> None:
    """Gradients accumulated over four batches: one call of `step`, the tokens of all four, and the period counts one.

    C-39: alone, with fp32, the outer rate 1 and no momentum, a learner trains as a bare loop does.
    """
    here = party(learner={"codec": "fp32"}, merge={"publish_codec": "fp32"}, sync={"sync_period": 5})
    model, bare = Zoo(nn.Identity, 1), Zoo(nn.Identity, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.002, momentum=0.9) for m in (model, bare)]
    steps, pause = 0, threading.Event()
    with Learner(model, optimizers[0], here.run.config, name="a") as learner:
        ends = time.monotonic() + LIMIT_S
        while min(here.versions()) < 4:
            assert time.monotonic() < ends
            tokens = [accumulated(m, o, steps) for m, o in zip((model, bare), optimizers, strict=True)]
            learner.step(tokens=tokens[0])
            steps += 1
            pause.wait(PACE_S)
        assert (learner.machine.step, learner.machine.trained_tokens) == (steps, 64 * steps)
        assert learner.machine.counts["cut"] <= 2 * (steps / 5 + 2)
    for mine, other in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_parameter_groups_keep_their_rates_when_a_learner_starts_over(party: Callable[..., Party]) -> None:
    """C-41: NaN in one learner with two groups, of an optimizer that makes its state when it is made."""
    model = Zoo(line, 1)
    groups = [{"params": model.line.parameters(), "lr": 1e-2}, {"params": model.odd.parameters(), "lr": 1e-3}]
    here = party()
    here.join(Zoo(line, 0), "good")
    optimizer = torch.optim.Adagrad(groups)
    bad = here.join(model, "bad", optimizer)
    here.train_versions(2)
    before = bad.key
    with torch.no_grad():
        model.odd.weight.fill_(float("nan"))
    here.train(lambda: bad.key != before, "a new incarnation")
    here.train_versions(2)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-3]
    assert all(bool(torch.isfinite(value).all()) for state in optimizer.state.values() for value in state.values())
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.parametrize(
    ("before", "after", "said"), [(True, False, "has been frozen"), (False, True, "was frozen and is trainable now")]
)
def test_a_parameter_that_changes_sides_is_refused_by_name(
    party: Callable[..., Party], before: bool, after: bool, said: str
) -> None:
    """At the next step, before anything is sent; the learner leaves in order, and the others go on."""
    here = party()
    models = [Zoo(line, seed) for seed in range(2)]
    for model in models:
        model.odd.bias.requires_grad_(before)
    stays, changes = (here.join(model, name) for model, name in zip(models, "ab", strict=True))
    here.train_versions(1)
    models[1].odd.bias.requires_grad_(after)
    steps = changes.machine.step
    with pytest.raises(ConfigError, match=rf"'odd\.bias' {said}"):
        changes.step(tokens=16)
    assert changes.machine.step == steps
    changes.close()
    del here._optimizers[changes]
    reached = min(here.versions()) + 2
    here.train(lambda: min(here.versions()) >= reached, "rounds of the other")
    stays.close()
    here.assert_balanced()


def features(seed: int, step: int, count: int) -> Tensor:
    """Far from mean 0 and variance 1, (count, 8)."""
    return 40 + 10 * torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1000 * seed + step))


def answers(x: Tensor) -> Tensor:
    """Which of the first four is largest, (B,) int64."""
    return x[:, :4].argmax(1)


def guessing(model: nn.Module, seed: int, step: int) -> tuple[Tensor, int]:
    x = features(seed, step, 64)
    return nn.functional.cross_entropy(model(x), answers(x)), len(x)


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Share of right answers of `model` in evaluation mode."""
    x = features(99, 0, 2000)
    return float((model.eval()(x).argmax(1) == answers(x)).float().mean())


def normed(seed: int) -> nn.Sequential:
    """A classifier whose statistics and counter begin somewhere of its own."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].running_mean.fill_(1000.0 * seed)
    model[0].num_batches_tracked.fill_(1000 * seed)
    return model


def test_batch_norm_evaluates_alike_at_all_learners(party: Callable[..., Party]) -> None:
    """C-43: statistics travel, whole-number counters stay, and the published model is as good in every learner."""
    here = party(learner={"codec": "4bit"})
    here.loss = guessing
    models, lowest = [normed(seed) for seed in range(2)], []
    for model, name in zip(models, "ab", strict=True):
        here.join(model, name, torch.optim.AdamW(model.parameters(), lr=3e-2))
    here.train_versions(1)

    def variances_of_ten_versions() -> bool:
        lowest.append(float(here.syncer.body.states[2].theta[WIDTH:].min()))
        return min(here.versions()) >= 10

    here.train(variances_of_ten_versions, "version 10 of every fragment")
    assert min(lowest) > 0
    assert [int(model[0].num_batches_tracked) for model in models] == [here.steps, 1000 + here.steps]
    for learner in here.learners:
        learner.close()
    late = [normed(seed) for seed in (5, 6)]
    for model, name in zip(late, "cd", strict=True):
        here.join(model, name)
    assert [int(model[0].num_batches_tracked) for model in late] == [5000, 6000]
    assert torch.equal(late[0][0].running_var, late[1][0].running_var)
    published = [accuracy(model) for model in late]
    assert published[0] == published[1] > 0.8
    assert all(abs(accuracy(model) - published[0]) < 0.1 for model in models)
