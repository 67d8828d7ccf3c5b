"""The script of a user whose machine is broken for a while: `spoiled_script.py RUN.toml NAME SEED PACE_S FAULT STEPS`.

It trains as `own_script.py` does, beside which it lies, save that after each of the first STEPS steps FAULT happens to
the model. What it has to say it prints as lines of JSON.
"""

import sys
import threading
from collections.abc import Sequence

import torch
from own_script import TopicNet, batch, say
from torch import Tensor, nn

import zdiloco


def nan(now: Tensor, before: Tensor) -> Tensor:
    return torch.where(now == now.max(), torch.nan, now)


def infinity(now: Tensor, before: Tensor) -> Tensor:
    return torch.where(now == now.max(), torch.inf, now)


def huge(now: Tensor, before: Tensor) -> Tensor:
    return torch.full_like(now, 1e30)


def flipped(now: Tensor, before: Tensor) -> Tensor:
    """What was learned, with the wrong sign and ten times."""
    return before - 10 * (now - before)


def backward(now: Tensor, before: Tensor) -> Tensor:
    """What was learned, with the wrong sign: as large as anybody's."""
    return 2 * before - now


def zeroed(now: Tensor, before: Tensor) -> Tensor:
    """Nothing is learned."""
    return before


FAULTS = {each.__name__: each for each in (nan, infinity, huge, flipped, backward, zeroed)}


def spoil(model: nn.Module, before: Sequence[Tensor], fault: str) -> None:
    with torch.no_grad():
        for value, old in zip(model.parameters(), before, strict=True):
            value.copy_(FAULTS[fault](value, old))


def main(run_toml: str, name: str, seed: str, pace_s: str, fault: str, steps: str) -> int:
    torch.manual_seed(int(seed))
    generator = torch.Generator().manual_seed(1000 + int(seed))
    model = TopicNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    made, rest = 0, threading.Event()
    with zdiloco.Learner(model, optimizer, run_toml, name=name) as learner:
        first = learner.key.incarnation
        while not learner.finished:
            before = [value.detach().clone() for value in model.parameters()]
            texts, topics = batch(generator)
            loss = nn.functional.cross_entropy(model(texts), topics)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            made += 1
            if made <= int(steps):
                spoil(model, before, fault)
            learner.step(tokens=texts.numel())
            rest.wait(float(pace_s))
    say(steps=made, counts=learner.counts, reborn=learner.key.incarnation != first, why=learner.reason)
    return learner.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
