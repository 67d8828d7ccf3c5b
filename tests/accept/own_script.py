"""A user's own training script: a model that zdiloco does not ship, the user's own data, and `zdiloco.Learner`.

Rule: nothing of it is the library's, save the marked lines. The tests copy this file into a folder of their own and run
it there as `own_script.py RUN.toml NAME SEED PACE_S`; what it has to say it prints as lines of JSON.
"""

import hashlib
import json
import signal
import sys
import threading

import torch
from torch import Tensor, nn

import zdiloco

BATCH, LENGTH, LETTERS, TOPICS = 32, 24, 32, 4


class TopicNet(nn.Module):
    """Names the topic of a short text: an embedding, a convolution, and a BatchNorm with its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 16)
        self.conv = nn.Conv1d(16, 32, 3, padding=1)
        self.norm = nn.BatchNorm1d(32)
        self.out = nn.Linear(32, TOPICS)

    def forward(self, texts: Tensor) -> Tensor:  # (B, LENGTH) int64 -> (B, TOPICS) fp32
        seen = torch.relu(self.norm(self.conv(self.embed(texts).transpose(1, 2))))
        return self.out(seen.mean(2))


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts (BATCH, LENGTH) int64 in which letters of the topic are a bit more frequent, and the topics (BATCH,)."""
    topics = torch.randint(TOPICS, (BATCH,), generator=generator)
    noise = torch.randint(LETTERS, (BATCH, LENGTH), generator=generator)
    of_topic = topics[:, None] * (LETTERS // TOPICS) + noise % (LETTERS // TOPICS)
    about = torch.rand(BATCH, LENGTH, generator=generator) < 0.3
    return torch.where(about, of_topic, noise), topics


def digest(model: nn.Module) -> str:
    """sha256 of every trainable parameter and floating-point buffer."""
    total = hashlib.sha256()
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()]):
        if tensor.is_floating_point():
            total.update(name.encode() + tensor.detach().numpy().tobytes())
    return total.hexdigest()


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main(run_toml: str, name: str, seed: str, pace_s: str) -> int:
    torch.manual_seed(int(seed))
    generator = torch.Generator().manual_seed(1000 + int(seed))
    model = TopicNet()
    model.norm.num_batches_tracked.fill_(1000 * int(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: asked.set())
    own = digest(model)
    losses = []
    with zdiloco.Learner(model, optimizer, run_toml, name=name) as learner:  # zdiloco's
        say(own=own, start=digest(model), tracked=int(model.norm.num_batches_tracked))
        while not (learner.finished or asked.is_set()):  # zdiloco's: `finished`
            texts, topics = batch(generator)
            loss = nn.functional.cross_entropy(model(texts), topics)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learner.step(tokens=texts.numel())  # zdiloco's
            losses.append(loss.item())
            asked.wait(float(pace_s))
    first, last = sum(losses[:2]) / 2, sum(losses[-20:]) / 20  # soon others' work may be in it
    end, tracked = digest(model), int(model.norm.num_batches_tracked)
    say(steps=len(losses), first=first, last=last, end=end, tracked=tracked, why=learner.reason)
    return learner.exit_code  # zdiloco's


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
