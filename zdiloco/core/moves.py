"""How a state moves on: by the table of its machine alone.

Rule: what stands in no table is a fault of ours, and the text names state and event.
"""

from collections.abc import Mapping
from typing import TypeVar

from zdiloco.errors import MachineError

StateT = TypeVar("StateT")
EventT = TypeVar("EventT")


def moved(table: Mapping[tuple[StateT, EventT], StateT], state: StateT, event: EventT, whose: str) -> StateT:
    """Return the state after `event`. Raises MachineError where the table has no such move; `whose`: state it is."""
    if (state, event) not in table:
        raise MachineError(f"{whose}: {event} while {state}")
    return table[state, event]
