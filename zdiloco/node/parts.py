"""What of a learner is saved and comes back: inner optimizer, random state, and whatever the user has handed in.

Rule: who has another model or another optimizer is told so, by the first name that differs; nothing is loaded by half.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from zdiloco.errors import ConfigError
from zdiloco.node.chance import random_state, set_random_state
from zdiloco.node.learner_body import forget_inner
from zdiloco.rundir.saved import INNER, About, Saved
from zdiloco.rundir.tree import pack

log = logging.getLogger(__name__)

RANDOM = "random"
PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Stateful(Protocol):
    """What the ecosystem's loaders and schedulers are: a state that can be taken and given back."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def _taken(name: str, part: Stateful | Optimizer) -> dict[str, Any]:
    """The state of a part. Raises ConfigError where it gives none, whatever it raises itself."""
    try:
        return part.state_dict()
    except Exception as error:  # a part of the user's may raise anything
        why = f"{type(part).__qualname__}.state_dict() raises {type(error).__name__}: {error}"
        raise ConfigError(f"{name} cannot be saved: {why}") from error


class Parts:
    """The parts of one learner, by name. All methods are for the training thread.

    Raises ConfigError for a part of an impossible name, or without the two methods.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, stateful: Mapping[str, Stateful]) -> None:
        self._optimizer, self._stateful = optimizer, dict(stateful)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        held = [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]
        self._parameters = tuple((names.get(id(each), ""), tuple(each.shape)) for each in held)
        self._devices = {each.device for each in held}
        for name, part in self._stateful.items():
            if not PART.fullmatch(str(name)) or name in (INNER, RANDOM):
                raise ConfigError(f"stateful has the key {name!r}; allowed is a name other than {INNER} and {RANDOM}")
            if not all(callable(getattr(part, method, None)) for method in ("state_dict", "load_state_dict")):
                raise ConfigError(f"stateful[{name!r}] is a {type(part).__name__}, without state_dict, load_state_dict")

    def about(self, name: str, run_name: str, run_id: str, step: int) -> About:
        """Whose state this is."""
        kind = f"{type(self._optimizer).__module__}.{type(self._optimizer).__qualname__}"
        return About(
            name=name, run_name=run_name, run_id=run_id, step=step, optimizer=kind, parameters=self._parameters
        )

    def inner(self) -> dict[str, Any]:
        """The inner optimizer's state as it gives it: the tensors themselves, which go on changing.

        Raises ConfigError where it gives none.
        """
        return _taken(INNER, self._optimizer)

    def pack_rest(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Pack every part but the inner optimizer, as they are now; their tensors are put into `tensors`.

        Raises ConfigError naming what cannot be saved.
        """
        parts = {RANDOM: random_state(self._devices), **{n: _taken(n, part) for n, part in self._stateful.items()}}
        return {name: pack(part, name, tensors) for name, part in parts.items()}

    def check(self, saved: Saved, mine: About, *, warm: bool) -> None:
        """Raise ConfigError unless `saved` may become this learner's; without `warm` its inner state need not fit."""
        about, where = saved.about, saved.path
        if about.run_name != mine.run_name:
            raise ConfigError(f"{where} is of run {about.run_name!r}, not of {mine.run_name!r}: take another run.dir")
        if not warm:
            return
        text = f'remove it, or set learner.warm_start = "none" for a fresh optimizer ({where})'
        if about.optimizer != mine.optimizer:
            raise ConfigError(f"the saved inner state is of {about.optimizer}, this is {mine.optimizer}: {text}")
        for theirs, ours in zip(about.parameters, mine.parameters, strict=False):
            if theirs != ours:
                raise ConfigError(f"the saved inner state has parameter {theirs}, this optimizer {ours}: {text}")
        if len(about.parameters) != len(mine.parameters):
            counts = f"{len(about.parameters)} parameters, this optimizer {len(mine.parameters)}"
            raise ConfigError(f"the saved inner state has {counts}: {text}")

    def restore(self, saved: Saved, *, warm: bool) -> tuple[str, ...]:
        """Give every part its state back, without `warm` all but the inner optimizer. Returns the names of those.

        Raises ConfigError naming a part that does not take its state.
        """
        parts = saved.parts if warm else {name: part for name, part in saved.parts.items() if name != INNER}
        for name in sorted(self._stateful.keys() ^ (parts.keys() - {INNER, RANDOM})):
            lacking = "has no state in it, and starts anew" if name in self._stateful else "is not handed in any more"
            log.warning("a part of the saved state is left out why=%r", f"stateful[{name!r}] {lacking} ({saved.path})")
        done = [name for name in parts if name in (INNER, RANDOM) or name in self._stateful]
        for name in done:
            self._load(name, parts[name], saved)
        return tuple(done)

    def _load(self, name: str, state: Any, saved: Saved) -> None:
        try:
            if name == RANDOM:
                set_random_state(state)
            else:
                (self._optimizer if name == INNER else self._stateful[name]).load_state_dict(state)
        except Exception as error:  # a part of the user's may raise anything
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{saved.path}: the state of {name!r} cannot be loaded ({why})") from error

    def load_inner(self, state: Any) -> None:
        """Give the inner optimizer this state, which is its own."""
        self._optimizer.load_state_dict(state)

    def forget_inner(self) -> None:
        """Empty the inner optimizer's state, as before its first step; rates and groups stay."""
        forget_inner(self._optimizer)
