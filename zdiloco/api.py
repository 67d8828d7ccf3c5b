"""The learner that users write into their training scripts: it reads its run.toml itself.

Rule: nothing is decided here; a file becomes settings, the rest is `node.learner`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from zdiloco.config import load
from zdiloco.errors import ConfigError
from zdiloco.node.learner import LearnerNode
from zdiloco.node.params import Settings
from zdiloco.node.parts import Stateful


class Learner(LearnerNode):
    """One learner of a run, around a model and an optimizer that the training script already has.

        with zdiloco.Learner(model, optimizer, "run.toml", name="us-east-0") as learner:
            for batch in data:
                ...forward, backward, optimizer.step()...
                learner.step(tokens=batch.numel())
                if learner.finished:
                    break

    Call `step` once for each `optimizer.step()`, with the tokens of all batches whose gradients went into it.
    The constructor returns when the model holds the published values, which are those of every other learner. `config`
    is the path of a run.toml or a RunConfig; `overrides` are texts like "sync.sync_period=12", for a path.
    `stateful`: by name, what else shall come back after a death, such as {"data": loader, "scheduler": scheduler}: each
    with `state_dict()` and `load_state_dict()`. It is saved with the optimizer every `learner.save_every_s` seconds;
    `learner.resumed` says what has come back.
    Raises ConfigError, LinkError or MachineError; the text says whose fault it is and what to do.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        config: str | Path | Settings,
        *,
        name: str,
        overrides: Iterable[str] = (),
        stateful: Mapping[str, Stateful] | None = None,
    ) -> None:
        settings = self._settings(config, tuple(overrides))
        super().__init__(model, optimizer, settings, name=name, stateful=stateful)

    @staticmethod
    def _settings(config: str | Path | Settings, overrides: tuple[str, ...]) -> Settings:
        if isinstance(config, str | Path):
            return load(Path(config), overrides)
        if overrides:
            raise ConfigError("overrides go with the path of a run.toml; these settings are already made")
        return config
