"""A user's script whose model is all size: `big_script.py RUN.toml NAME PACE_S`. Fragments of 0.5 MB in bf16."""

import signal
import sys
import threading

import torch

import zdiloco


def main(run_toml: str, name: str, pace_s: str) -> int:
    torch.manual_seed(1)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(2**18)) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    with zdiloco.Learner(model, optimizer, run_toml, name=name) as learner:
        while not (learner.finished or asked.is_set()):
            with torch.no_grad():
                model[0][:8] += 0.001
            learner.step(tokens=8)
            asked.wait(float(pace_s))
    return learner.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
