"""A training script of one's own, on zdiloco: it learns a sine. The argument is this learner's name."""

import pathlib
import sys
import zlib

import torch
from torch import nn

import zdiloco

name = sys.argv[1]  # no two learners of a run share one
torch.manual_seed(zlib.crc32(name.encode()))  # each learner has data of its own
model = nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with zdiloco.Learner(model, optimizer, pathlib.Path(__file__).with_name("run.toml"), name=name) as learner:
    while not learner.finished:
        x = torch.rand(64, 1) * 6 - 3
        loss = nn.functional.mse_loss(model(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(tokens=len(x))

# A learner that was replaced or turned away has raised by now: the error says why.
x = torch.linspace(-3, 3, 100)[:, None]
error = (model(x) - torch.sin(x)).abs().mean().item()
print(f"{name}: reached_target={learner.reached_target} ({learner.reason}); off by {error:.3f} on average")
