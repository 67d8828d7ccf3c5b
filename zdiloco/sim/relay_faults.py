"""What can go wrong with a relay and its far link: done to a world and undone, as in `faults.py`."""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from zdiloco.sim.fault_names import FaultName
from zdiloco.sim.links import Passage
from zdiloco.sim.relay_places import Relay
from zdiloco.sim.world import World

if TYPE_CHECKING:
    from zdiloco.sim.faults import Faults
    from zdiloco.sim.scenario import Fault

LOSS = 0.3
SLOWER = 10.0


def start_again(world: World, name: str) -> None:
    """The relay of this name starts, unless it is there."""
    before = world.relays.by_name[name]
    if not before.alive:
        world.relays.start(before.spec, before.link)


def _relay(faults: "Faults", fault: "Fault") -> Relay | None:
    relay = faults.world.relays.by_name.get(fault.who)
    return relay if relay is not None and relay.alive else None


def _kill(faults: "Faults", fault: "Fault", rng: random.Random) -> bool:
    relay = _relay(faults, fault)
    if relay is None:
        return False
    faults.world.relays.kill(relay)
    faults.after(fault, partial(start_again, faults.world, fault.who))
    return True


def _stop(faults: "Faults", fault: "Fault", rng: random.Random) -> bool:
    relay = _relay(faults, fault)
    if relay is None or relay.stopped:
        return False
    faults.world.stop(relay)
    faults.after(fault, partial(faults.world.resume, relay))
    return True


def _half_open(faults: "Faults", fault: "Fault", rng: random.Random) -> bool:
    relay = _relay(faults, fault)
    if relay is None:
        return False
    relay.link.up.passage, relay.link.down.passage = Passage.HELD, Passage.CUT
    faults.after(fault, partial(faults.open, relay.link))
    return True


def _lossy(faults: "Faults", fault: "Fault", rng: random.Random) -> bool:
    return _spoil(faults, fault, "extra_loss", LOSS)


def _slow(faults: "Faults", fault: "Fault", rng: random.Random) -> bool:
    return _spoil(faults, fault, "slow", SLOWER)


def _spoil(faults: "Faults", fault: "Fault", what: str, value: float) -> bool:
    relay = _relay(faults, fault)
    if relay is None:
        return False
    for road in (relay.link.up, relay.link.down):
        setattr(road, what, value)
    faults.after(fault, partial(faults.clean, relay.link))
    return True


DEEDS: dict[FaultName, Callable[["Faults", "Fault", random.Random], bool]] = {
    FaultName.RELAY_KILL: _kill, FaultName.RELAY_STOP: _stop, FaultName.FAR_HALF_OPEN: _half_open,
    FaultName.FAR_LOSSY: _lossy, FaultName.FAR_SLOW: _slow,
}  # fmt: skip
