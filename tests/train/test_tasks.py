"""A task learns, repeats itself to the bit, judges any set of values, and refuses settings that cannot work."""

from dataclasses import fields, replace

import pytest
import torch

from zdiloco.errors import ConfigError
from zdiloco.train.models import ByteGPT
from zdiloco.train.params import TaskParams
from zdiloco.train.tasks import Task, load_values


def train(task: Task, steps: int) -> list[float]:
    return [task.train_step(task.schedule.rate(i / 40, i))[0] for i in range(steps)]


def test_a_short_training_lowers_the_loss(params: TaskParams) -> None:
    task = Task(params, shard=0)
    before = task.evaluate()
    train(task, 25)
    assert before > 5.4
    assert task.evaluate() < before - 1.5


def test_a_step_says_its_tokens_and_uses_the_rate_it_is_told(params: TaskParams) -> None:
    task = Task(params, shard=0)
    before = {name: p.clone() for name, p in task.model.named_parameters()}
    _, tokens = task.train_step(0.0)
    assert tokens == params.tokens_per_step == 4 * 32
    assert all(torch.equal(p, before[name]) for name, p in task.model.named_parameters())
    task.train_step(1e-3)
    assert not torch.equal(task.model.embed.weight, before["embed.weight"])


def test_equal_params_give_equal_bits(params: TaskParams) -> None:
    first, second = Task(params, shard=1), Task(params, shard=1)
    assert train(first, 4) == train(second, 4)
    assert torch.equal(first.model.lm_head.weight, second.model.lm_head.weight)


def test_learners_start_alike_and_read_different_data(params: TaskParams) -> None:
    one, other = Task(params, shard=0), Task(params, shard=1)
    assert torch.equal(one.model.lm_head.weight, other.model.lm_head.weight)
    assert not torch.equal(one.cursor.next_batch(), other.cursor.next_batch())
    assert one.evaluate() == other.evaluate()


def test_resumed_task_continues_as_if_uninterrupted(params: TaskParams) -> None:
    whole, saved = Task(params, shard=0), Task(params, shard=0)
    train(whole, 3)
    train(saved, 3)
    resumed = Task(params, shard=0)
    resumed.load_values(dict(saved.model.named_parameters()))
    resumed.optimizer.load_state_dict(saved.optimizer.state_dict())
    resumed.cursor.load_state_dict(saved.cursor.state_dict())
    assert train(whole, 3) == train(resumed, 3)


def test_any_values_can_be_judged_without_touching_the_model(params: TaskParams) -> None:
    task, trained = Task(params, shard=0), Task(params, shard=0)
    train(trained, 10)
    values = {name: p.detach().clone() for name, p in trained.model.named_parameters()}
    untouched = task.evaluate()
    assert task.evaluate_values(values) == trained.evaluate()
    assert task.evaluate() == untouched
    task.load_values(values)
    assert task.evaluate() == trained.evaluate() == task.evaluate(trained.model)


def test_foreign_values_are_refused_before_anything_changes(params: TaskParams) -> None:
    model = Task(params, shard=0).model
    values = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    before = model.embed.weight.clone()
    with pytest.raises(ConfigError, match=r"missing are \['norm.weight'\], unknown here are \['extra'\]"):
        load_values(model, {n: v for n, v in values.items() if n != "norm.weight"} | {"extra": torch.zeros(1)})
    with pytest.raises(ConfigError, match=r"lm_head.weight is \(1,\), but must be \(256, 96\)"):
        load_values(model, values | {"lm_head.weight": torch.zeros(1)})
    assert torch.equal(model.embed.weight, before)


def test_evaluation_takes_other_batches_and_models(params: TaskParams) -> None:
    task = Task(params, shard=0)
    batch = torch.randint(256, (2, 9))
    other = ByteGPT(task.model.config, seed=99)
    assert task.evaluate(other, batches=[batch]) == pytest.approx(other.loss(batch).item())


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "other"), ("preset", "huge"), ("batch_size", 0), ("context", 0), ("lr", -1.0), ("weight_decay", -0.1),
     ("beta1", 1.0), ("beta2", -0.1), ("grad_clip", float("nan")), ("warmup_fraction", 2.0), ("final_fraction", -1.0),
     ("rejoin_warmup_steps", -1), ("seed", -1), ("num_shards", 0), ("min_data_bytes", -1), ("validation_batches", 0),
     ("validation_batch_size", 0)],
)  # fmt: skip
def test_values_that_cannot_work_are_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key} is '?{value}"):
        TaskParams(**{key: value})


def test_unknown_device_is_named(params: TaskParams) -> None:
    with pytest.raises(ConfigError, match=r"task\.device is 'abacus'"):
        Task(replace(params, device="abacus"), shard=0)


def test_every_key_is_documented() -> None:
    assert all(f.metadata["doc"] and isinstance(f.metadata["unit"], str) for f in fields(TaskParams))
