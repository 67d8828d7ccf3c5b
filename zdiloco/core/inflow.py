"""Updates on their way into a learner: announced, assembled, prepared, adopted; and pulls for what was missed.

Rule: updates of a fragment are adopted one after the other. What does not follow the tip is pulled whole, with the
map, so that nothing merged is ever overlooked. A broadcast is a hint; beats tell what there should be. What is not the
published value, or is a delta to another state than the adopted one, is never adopted: the whole state is pulled.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zdiloco.core.downlink import Downlink
from zdiloco.core.duty import Duty
from zdiloco.core.finishing import TAKES_UPDATES, came
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.machine import (
    SYNCER,
    Adopt,
    Discard,
    LearnerAction,
    Misfit,
    Note,
    Prepare,
    Prepared,
    Receive,
    Send,
    UpdateLost,
    UpdateReady,
)
from zdiloco.core.messages import Pull, Update
from zdiloco.core.progress import Fate

if TYPE_CHECKING:
    from zdiloco.core.learner import LearnerMachine

MOST_RECEIVING = 2
"""Updates of one fragment that are assembled at once; beyond that the newest state is pulled."""


class Inflow:
    """The incoming side of one learner machine."""

    def __init__(self, machine: "LearnerMachine") -> None:
        self.machine = machine
        self.downlink = Downlink(self)

    def deadline(self) -> float:
        """When a pull without an answer is repeated; infinity: none is open."""
        wait = self.machine.params.answer_timeout_s
        pulled = (duty.pulled_at + wait for duty in self.machine.duties if duty.pulled_at is not None)
        return min(pulled, default=float("inf"))

    def turn(self, now: float) -> list[LearnerAction]:
        """Repeat pulls without an answer; who does not listen pulls what is behind."""
        wait, actions = self.machine.params.answer_timeout_s, list[LearnerAction]()
        for duty in self.machine.duties:
            if duty.pulled_at is not None and now >= duty.pulled_at + wait:
                duty.pulled_at = None
                actions += self.pull(duty, now)
        return actions + self.downlink.turn(now)

    def pull(self, duty: Duty, now: float) -> list[LearnerAction]:
        """Ask for the newest state of a fragment, unless that is under way."""
        epoch = self.machine.epoch  # a state of another one is no answer: after it nobody would ask again
        whole = any(update.full and update.stamp.epoch == epoch for update in duty.receiving.values())
        coming = duty.pulled_at is not None or whole
        if coming or self.machine.phase not in TAKES_UPDATES:
            return []
        duty.pulled_at = now
        self.machine.count("pulled")
        return [Send(key=SYNCER, message=Pull(fragment=duty.index))]

    def check(self, duty: Duty, version: int, now: float) -> list[LearnerAction]:
        """A beat says which version there is: missing it for two beats, pull; unless nothing comes by itself."""
        left = self.downlink.beaten(duty, version, now)
        if not self.downlink.listening:
            return left
        behind = duty.progress.seen.epoch == self.machine.epoch and duty.tip.version < version
        if not behind:
            duty.behind = -1
            return []
        if duty.behind < 0 or duty.tip.version >= duty.behind:
            duty.behind = version  # it may just be on its way: the next beat decides
            return []
        self.machine.count("repaired")
        return self.pull(duty, now)

    def offered(self, duty: Duty, update: Update, now: float) -> list[LearnerAction]:
        """An update is announced, by broadcast or as the answer to a pull."""
        if update.full:
            duty.pulled_at = None
        elif not self.downlink.announced(update, now):
            return []
        came(self.machine, now)
        if not duty.follows(update):
            if update.full or update.stamp <= duty.tip:
                return []
            self.machine.count("gap")
            return self.pull(duty, now)
        actions: list[LearnerAction] = [] if update.full else self.downlink.bursts(update)
        if update.full:
            for stamp in [stamp for stamp in duty.receiving if stamp <= update.stamp]:
                actions.append(Discard(update=duty.receiving.pop(stamp)))
            if update.stamp in duty.ready:
                actions.append(Discard(update=duty.ready.pop(update.stamp)[0]))
        elif len(duty.receiving) >= MOST_RECEIVING:
            return actions + self.pull(duty, now)
        duty.receiving[update.stamp] = update
        comes = not (update.full or self.downlink.asks)
        return [*actions, Receive(update=update, broadcast=comes)]

    def arrived(self, event: UpdateReady, now: float) -> list[LearnerAction]:
        """The body of an update is complete: it waits for its turn."""
        duty = self.machine.duties[event.update.fragment]
        came(self.machine, now)
        self.downlink.arrived(event.update, now)
        if duty.receiving.get(event.update.stamp) != event.update:
            return [Discard(update=event.update)]
        del duty.receiving[event.update.stamp]
        duty.ready[event.update.stamp] = (event.update, event.records)
        return self._next(duty, now)

    def lost(self, event: UpdateLost, now: float) -> list[LearnerAction]:
        """The body of an update cannot be had: pull the newest state instead."""
        duty = self.machine.duties[event.update.fragment]
        if duty.receiving.get(event.update.stamp) == event.update:
            del duty.receiving[event.update.stamp]
            self.machine.count("update lost")
            return self.pull(duty, now)
        return []

    def _next(self, duty: Duty, now: float) -> list[LearnerAction]:
        """Prepare the oldest update that is here, if no other is in preparation."""
        actions: list[LearnerAction] = []
        while duty.adoption is None and duty.ready:
            stamp = min(duty.ready)
            update, records = duty.ready[stamp]
            seen = duty.progress.seen
            if not update.full and stamp > seen and (stamp.epoch, stamp.version) != (seen.epoch, seen.version + 1):
                if duty.receiving:
                    return actions  # one before it is still coming
                del duty.ready[stamp]
                actions.append(Discard(update=update))
                if any(other.full for other, _ in duty.ready.values()):
                    continue
                return [*actions, *self.pull(duty, now)]
            mine, tokens = duty.mine(self.machine.key, update, records)
            adoption = duty.progress.judge(stamp, mine, tokens)
            if adoption.fate is Fate.OLD:
                del duty.ready[stamp]
                actions.append(Discard(update=update))
                continue
            if update.base not in (None, seen):
                why = f"it is a delta to version {update.base.version}, adopted is {seen.version}"
                return [*actions, *self._reject(duty, update, why, now)]
            duty.adoption, duty.prepared = adoption, False
            actions += self._prepare(duty)
        return actions

    def _prepare(self, duty: Duty) -> list[LearnerAction]:
        adoption, params = duty.adoption, self.machine.params
        assert adoption is not None
        fresh = duty.progress.seen.version < 0 or self.machine.phase is LearnerPhase.RESTORING
        nothing_own = self.machine.watching or params.adopt == "overwrite"
        duty.reset = fresh or nothing_own or adoption.fate is Fate.GIVEN_UP
        duty.serial += 1
        return [
            Prepare(
                fragment=duty.index, stamp=adoption.stamp, subtract=adoption.subtract, restore=adoption.restore,
                reset=duty.reset, serial=duty.serial, keep=params.blend if params.adopt == "blend" else 1.0,
            )
        ]  # fmt: skip

    def prepare_again(self, duty: Duty) -> list[LearnerAction]:
        """What is unmerged was dropped: an adoption in preparation must not subtract it."""
        if duty.adoption is None:
            return []
        update, records = duty.ready[duty.adoption.stamp]
        mine, tokens = duty.mine(self.machine.key, update, records)
        duty.adoption, duty.prepared = duty.progress.judge(update.stamp, mine, tokens), False
        return self._prepare(duty)

    def prepared(self, event: Prepared) -> list[LearnerAction]:
        """The change is worked out; the next boundary adds it."""
        duty = self.machine.duties[event.fragment]
        if duty.adoption is not None and duty.serial == event.serial:
            duty.prepared = True
        return []

    def misfit(self, event: Misfit, now: float) -> list[LearnerAction]:
        """What was worked out is not what was published."""
        duty = self.machine.duties[event.fragment]
        if duty.adoption is None or duty.serial != event.serial:
            return []
        update, _ = duty.ready[duty.adoption.stamp]
        duty.adoption, duty.prepared = None, False
        return self._reject(duty, update, event.reason, now)

    def _reject(self, duty: Duty, update: Update, why: str, now: float) -> list[LearnerAction]:
        """An update that does not fit goes, and the whole state is pulled; at leisure where this was the whole one."""
        del duty.ready[update.stamp]
        self.machine.count("misfit")
        level = "warning" if self.machine.counts["misfit"] == 1 else "debug"
        what = f"fragment {duty.index}: version {update.stamp.version} does not fit, and is pulled whole"
        actions: list[LearnerAction] = [Note(what=what, why=why, level=level), Discard(update=update)]
        if update.full:
            duty.pulled_at = now  # asked again after `answer_timeout_s`, not at once: it would be the same
        else:
            actions += self.pull(duty, now)
        return actions + self._next(duty, now)

    def adopt(self, now: float) -> list[LearnerAction]:
        """At a boundary: adopt every update that is prepared."""
        actions: list[LearnerAction] = []
        for duty in self.machine.duties:
            if duty.adoption is not None and duty.prepared:
                actions += self._adopt(duty, now)
        return actions

    def _adopt(self, duty: Duty, now: float) -> list[LearnerAction]:
        adoption, machine = duty.adoption, self.machine
        assert adoption is not None
        update, records = duty.ready.pop(adoption.stamp)
        before = duty.progress.after, duty.progress.seen.epoch
        actions: list[LearnerAction] = [Adopt(fragment=duty.index, stamp=adoption.stamp)]
        forget = duty.progress.adopt(adoption)
        if duty.reset and duty.progress.tokens:
            duty.progress.drop()
            machine.count("dropped")
        if before != (duty.progress.after, duty.progress.seen.epoch) and duty.way:
            machine.outflow.uplink.end(duty.index, duty.settle())
        if adoption.fate is not Fate.CARRIED:
            machine.count(str(adoption.fate))
        if adoption.fate in (Fate.ROLLED_BACK, Fate.GIVEN_UP):
            why = f"this state holds my contributions up to {adoption.mine}, I knew of {before[0]}"
            actions.append(Note(what=f"fragment {duty.index}: {adoption.fate}", why=why, level="warning"))
        duty.take_map(update, records)
        if duty.adopted is not None:
            actions.append(Discard(update=duty.adopted))
        duty.adopted, duty.adoption, duty.prepared = update, None, False
        return actions + machine.outflow.forget(duty, forget) + self._next(duty, now)

    def clear(self, duty: Duty) -> list[LearnerAction]:
        """Forget everything that is on its way in: the learner starts over."""
        updates = [*duty.receiving.values(), *(update for update, _ in duty.ready.values())]
        updates += [duty.adopted] if duty.adopted else []
        duty.receiving.clear()
        duty.ready.clear()
        duty.adoption, duty.adopted, duty.pulled_at = None, None, None
        return [Discard(update=update) for update in updates]


EVENTS: dict[type, Callable[[Any, Any, float], list[LearnerAction]]] = {
    Prepared: lambda machine, event, now: machine.inflow.prepared(event),
    Misfit: lambda machine, event, now: machine.inflow.misfit(event, now),
    UpdateReady: lambda machine, event, now: machine.inflow.arrived(event, now),
    UpdateLost: lambda machine, event, now: machine.inflow.lost(event, now),
}
"""What a learner machine hands on to its `inflow`."""
