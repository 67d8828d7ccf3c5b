"""Watches that what may be trained stays what it was: a layout is fixed, so a parameter cannot join or leave it.

Rule: a look costs the training thread microseconds. Each takes the next 64 parameters, frozen ones too, so a change is
seen at one of the next `parameters / 64` looks.
"""

from torch import nn
from torch.nn.parameter import Parameter

from zdiloco.errors import ConfigError

PER_LOOK = 64


class Trainable:
    """Which parameters of `model` are trainable, as it was when this was made."""

    def __init__(self, model: nn.Module) -> None:
        rows: list[tuple[str, dict[str, Parameter | None], str, bool]] = []  # name, where it lives, was it trainable
        for path, module in model.named_modules():
            for attribute, parameter in module.named_parameters(recurse=False):
                name = f"{path}.{attribute}" if path else attribute
                rows.append((name, module._parameters, attribute, parameter.requires_grad))
        self._groups = [rows[at : at + PER_LOOK] for at in range(0, len(rows), PER_LOOK)] or [[]]
        self._next = 0

    def look(self) -> None:
        """Look at the next parameters. Raises: ConfigError naming one that was frozen, set free, or taken away."""
        group = self._groups[self._next]
        for name, place, attribute, was in group:
            parameter = place.get(attribute)
            if parameter is None:
                raise ConfigError(f"parameter {name!r} has been taken out of the model: {_FIXED}")
            if parameter.requires_grad is not was:
                raise ConfigError(f"parameter {name!r} {_CHANGED[was]}: {_FIXED}")
        self._next = (self._next + 1) % len(self._groups)


_FIXED = (
    "which parameters travel is fixed when a learner begins; change it before that, and start a new run, "
    "or give the parameter a learning rate of 0"
)
_CHANGED = {
    True: "has been frozen (requires_grad is False now, and was True)",
    False: "was frozen and is trainable now (requires_grad is True)",
}
