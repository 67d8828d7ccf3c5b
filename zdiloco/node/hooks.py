"""What the outside may put into a node: another clock, a tape that sees every decision, a way to end the waiting.

Rule: each has a default that the ordinary process uses; none changes what the machines decide.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zdiloco.node.clock import Clock, monotonic
from zdiloco.node.service import NOBODY, Service

Tape = Callable[[float, Any, list[Any]], None]
"""Called with every event that a machine has handled: now, event, actions. In the machine's order, on any thread."""


def never() -> bool:
    """The answer of somebody who waits as long as it takes."""
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """`abandon` is asked while a learner waits to join: True makes its constructor raise LinkError. `service`: hears
    that the loop turns. `shared`: the settings that a syncer hands to whom it has invited, as paths and TOML values."""

    clock: Clock = monotonic
    tape: Tape | None = None
    abandon: Callable[[], bool] = never
    service: Service = NOBODY
    shared: tuple[tuple[str, str], ...] = ()
