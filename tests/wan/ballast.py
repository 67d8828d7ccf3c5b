"""A user's own script with a model as large as asked, whose steps cost little: RUN.toml NAME PARAMETERS PACE_S."""

import signal
import sys
import threading
import zlib

import torch
from torch import nn

import zdiloco

TENSORS = 24


def main(run_toml: str, name: str, parameters: str, pace_s: str) -> int:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    size = int(parameters) // TENSORS
    model = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in range(TENSORS))
    for parameter in model:
        parameter.grad = torch.randn(size, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: asked.set())
    with zdiloco.Learner(model, optimizer, run_toml, name=name) as learner:
        while not (learner.finished or asked.is_set()):
            optimizer.step()
            learner.step(tokens=100)
            asked.wait(float(pace_s))
    return learner.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
