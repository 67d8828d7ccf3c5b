"""A world in which the dumb model walks beside every machine, and each difference between the two fails at once.

The model is told what reached whom. For every contribution it must give the same answer as the machine, for every close
the same ids, for every adoption the same fate and unmerged work, for every recovery the same state.
"""

from collections import Counter
from typing import Any

from tests.core.oracle import ModelLearner, ModelSyncer, Published
from zdiloco.core import machine as m
from zdiloco.core.intake import Intakes
from zdiloco.core.messages import Contribution, Heartbeat
from zdiloco.core.params import SyncParams
from zdiloco.core.start import SyncerPhase
from zdiloco.sim.actors import Actor, Site
from zdiloco.sim.bodies import SyncerDisk
from zdiloco.sim.world import World
from zdiloco.units import NO_STAMP, MemberKey

PROTOCOL_REFUSALS = ("epoch", "after", "seq")


class Lockstep(World):
    """A world with a model of every process, per fragment."""

    def __init__(self, params: SyncParams, num_fragments: int, seed: int = 0, **syncer: Any) -> None:
        self.models: dict[int, list[ModelSyncer]] = {}
        self.shadows: dict[tuple[MemberKey, int], ModelLearner] = {}
        self.states: dict[tuple[int, Any], Published] = {}
        self.seen: Counter[str] = Counter()
        self.lost_ids: dict[int, int] = {}
        self.dropped_ids: dict[int, int] = {}
        super().__init__(params, num_fragments, seed, **syncer)

    # ---- syncers

    def tell_syncer(self, site: Site | None, event: Any) -> None:
        before = site.machine.phase if site else None
        super().tell_syncer(site, event)
        if site and before is SyncerPhase.RECOVERING and site.machine.phase is SyncerPhase.SEALING:
            self.recovered(site)
        elif site and before is SyncerPhase.EMPTY and site.machine.phase is SyncerPhase.SEALING:
            self.models[id(site)] = [ModelSyncer(site.machine.epoch, 0) for _ in range(self.num_fragments)]
            self.note_states(site)

    def recovered(self, site: Site) -> None:
        """A successor's model starts from the newest of its disk and of what was handed back; so must the machine."""
        self.seen["recovered"] += 1
        models = []
        for fragment, state in enumerate(site.body.states):
            offered = [self.states[fragment, stamp] for stamp in self.reachable(site, fragment)]
            best = max(offered, key=lambda published: published.stamp)
            assert (best.stamp[1], best.merged) == (state.stamp.version, state.value), "another state than the newest"
            models.append(ModelSyncer(site.machine.epoch, best.stamp[1], best.merged, dict(best.last)))
        self.models[id(site)] = models
        self.note_states(site)

    def reachable(self, site: Site, fragment: int) -> list[Any]:
        stamps = [site.disk.states[fragment].stamp]
        waiting = site.machine.reception.recovery.waiting
        stamps += [hello.stamps[fragment] for hello in waiting.values() if hello.stamps]
        stamps += [stamp for _, index, stamp in self.returned if index == fragment]  # adopted since the hello
        return [stamp for stamp in stamps if self.taken(site, fragment, stamp)]

    def taken(self, site: Site, fragment: int, stamp: Any) -> bool:
        """Whether the machine had it or got it: one that was on its way when the wait ended does not count."""
        return stamp <= site.machine.reception.recovery.best[fragment]

    def note_states(self, site: Site) -> None:
        for fragment, model in enumerate(self.models[id(site)]):
            self.states[fragment, model.published().stamp] = model.published()

    def do_syncer(self, site: Site, action: Any) -> None:
        if isinstance(action, m.Stop) and "newer syncer" in action.reason:
            self.seen["fenced"] += 1
        if isinstance(action, m.Send) and type(action.message).__name__ == "Refused":
            self.seen[f"refused: {action.message.reason}"] += 1
            if action.message.reason == "budget":  # the model knows no memory: it is told what was sent back
                self.models[id(site)][action.message.fragment].held.pop(action.key, None)
        if isinstance(action, m.Send) and getattr(action.message, "remark", ""):
            self.seen[f"remark: {action.message.remark}"] += 1
        super().do_syncer(site, action)

    def on_merge(self, site: Site, action: m.Merge) -> None:
        super().on_merge(site, action)
        model = self.models[id(site)][action.fragment]
        before = model.merged
        published = model.close()
        merged = 0
        for part in action.parts:
            merged |= site.body.payloads[part.id]
        assert merged == published.merged & ~before, "the machine merges other ids than the model"
        assert published.stamp == action.stamp
        map_ = {key: entry.seq for key, entry in site.machine.desk.fragments[action.fragment].intake.map.items()}
        assert map_ == published.last
        self.states[action.fragment, action.stamp] = published
        self.seen["merged at the syncer"] += 1

    def compare_offer(self, site: Site, key: MemberKey, message: Contribution, answer: str) -> None:
        """`answer`: what the machine said to a contribution whose bytes are here, or that it refused at the offer."""
        model = self.models[id(site)][message.fragment]
        ids = site.body.payloads.get((key.name, key.incarnation, message.fragment, message.seq), 0)
        held = model.held.get(key, (0, 0))[0]
        said = model.offer(key, message.stamp.epoch, message.seq, message.after, ids)
        assert said == answer, f"{key.name} seq {message.seq}: the machine says {answer}, the model {said}"
        if said == "held" and held:
            self.seen["replaced"] += 1

    # ---- learners

    def work_learner(self, actor: Actor, action: Any) -> None:
        if isinstance(action, m.Snapshot):
            model = self.shadow(actor, action.fragment)
            seq, after, ids = model.cut()
            progress = actor.machine.duties[action.fragment].progress
            assert (seq, after) == (action.seq, progress.after)
            assert ids == actor.body.progress(action.fragment)
        if isinstance(action, m.Drop):
            self.shadow(actor, action.fragment).drop()
            self.seen["dropped"] += 1
        reset = isinstance(action, m.Adopt) and actor.body.prepared[action.fragment][0].reset
        super().work_learner(actor, action)
        if isinstance(action, m.Adopt):
            self.adopted(actor, action, reset)

    def adopted(self, actor: Actor, action: m.Adopt, reset: bool) -> None:
        model = self.shadow(actor, action.fragment)
        fate = model.adopt(self.states[action.fragment, action.stamp])
        self.seen[fate] += 1
        if reset and model.unmerged:
            model.drop()  # steps made before there were published values
        assert model.unmerged == actor.body.progress(action.fragment), fate

    def shadow(self, actor: Actor, fragment: int) -> ModelLearner:
        if (actor.key, fragment) not in self.shadows:
            blank = Published(NO_STAMP, 0, {})
            self.shadows[actor.key, fragment] = ModelLearner(actor.key, blank)
        return self.shadows[actor.key, fragment]

    def step(self, actor: Actor, seconds: float) -> None:
        for fragment in range(self.num_fragments):
            self.shadow(actor, fragment).unmerged |= 1 << self.next_work
        super().step(actor, seconds)

    def tell(self, actor: Actor, event: Any) -> None:
        before = [set(duty.progress.kept) for duty in actor.machine.duties]
        key = actor.key
        super().tell(actor, event)
        for duty in actor.machine.duties if actor.alive and key == actor.key == actor.machine.key else ():
            model, progress = self.shadow(actor, duty.index), duty.progress
            assert (model.seq, model.after) == (progress.seq, progress.after)
            assert set(model.sent) >= set(progress.sent)  # what was refused for good is forgotten
        message = event.message if isinstance(event, m.Received) else None
        if type(message).__name__ == "Beat" and actor.alive:
            self.compare_stable(actor, message, before)

    def compare_stable(self, actor: Actor, beat: Any, before: list[set[int]]) -> None:
        for fragment, duty in enumerate(actor.machine.duties):
            model = self.shadow(actor, fragment)
            if duty.adoption is None and beat.epoch == actor.machine.epoch and beat.stable[fragment : fragment + 1]:
                if beat.stable[fragment] >= 0 and actor.machine.phase in ("training", "restoring"):
                    model.stable(beat.epoch, beat.stable[fragment])
                assert set(model.kept) == set(duty.progress.kept)
                self.seen["freed as stable"] += len(before[fragment] - set(duty.progress.kept))

    def bury(self, actor: Actor, state: str) -> None:
        super().bury(actor, state)
        for fragment in range(self.num_fragments):
            self.mourn(actor.key, fragment)

    def mourn(self, key: MemberKey, fragment: int) -> None:
        """What went down with a process, or was dropped by it."""
        model = self.shadows.pop((key, fragment), None)
        if model:
            kept = 0
            for _, ids in model.kept.values():
                kept |= ids
            self.lost_ids[fragment] = self.lost_ids.get(fragment, 0) | model.unmerged | kept
            self.dropped_ids[fragment] = self.dropped_ids.get(fragment, 0) | model.dropped

    # ---- two syncers at once

    def take_over(self, followers: list[Actor]) -> Site:
        """A successor starts from what the old one has made durable, while that lives on with the others."""
        self.seen["took over beside a living one"] += 1
        return super().take_over(followers)

    def follow(self, actor: Actor, new: Site) -> None:
        """One more learner reaches the new syncer; its last word to the old one fences that."""
        if new is not self.site:
            return  # it is dead, or has been taken over itself
        old, actor.site = actor.site, new
        if old is not None and old.alive and new.machine.phase is SyncerPhase.RUNNING and self.rng.random() < 0.5:
            self.tell_syncer(old, m.Received(key=actor.key, message=Heartbeat(epoch=new.machine.epoch)))

    # ---- the end

    def finish(self) -> None:
        """Everybody has followed one syncer: every id is merged, held, dropped, or went down with its process."""
        assert self.site is not None
        for fragment, state in enumerate(self.site.body.states):
            held = dropped = 0
            for actor in self.actors.values():
                held |= actor.body.progress(fragment)
                dropped |= self.shadow(actor, fragment).dropped
            dropped |= self.dropped_ids.get(fragment, 0)
            everything = (1 << self.next_work) - 2
            gone = everything & ~(state.value | held | dropped | self.lost_ids.get(fragment, 0))
            assert not gone, f"fragment {fragment}: lost {gone:b}"


def watch_intakes(world: Lockstep) -> None:
    """Compare every answer of a syncer's intake with the model's, also for syncers that start later."""
    start = world.start_syncer

    def started(disk: SyncerDisk) -> Site:
        site = start(disk)
        _watch(world, site, site.machine.intakes)
        return site

    world.start_syncer = started
    assert world.site is not None
    _watch(world, world.site, world.site.machine.intakes)


def _watch(world: Lockstep, site: Site, intakes: Intakes) -> None:
    offer, screened = intakes.offer, intakes.screened

    def watched_offer(member: Any, message: Contribution, epoch: Any) -> list[Any]:
        actions = offer(member, message, epoch)
        sent = [a.message for a in actions if isinstance(a, m.Send) and a.key == member.key]
        for answer in sent:
            if type(answer).__name__ == "Refused" and answer.seq == message.seq and answer.reason in PROTOCOL_REFUSALS:
                world.compare_offer(site, member.key, message, answer.reason)
            elif type(answer).__name__ == "Ack":
                said = "merged" if answer.merged == message.seq else "same"
                world.compare_offer(site, member.key, message, said)
        return actions

    def watched_screened(event: m.Screened, epoch: Any, now: float) -> list[Any]:
        incoming = intakes.incoming.get((event.id.key, event.id.fragment))
        late = intakes.late
        actions = screened(event, epoch, now)
        if incoming and incoming.message.seq == event.id.seq and not event.reason:
            said = {a.message.reason for a in actions if isinstance(a, m.Send) and hasattr(a.message, "reason")}
            refused = said & {*PROTOCOL_REFUSALS, "norm"}
            if refused != {"norm"}:  # the model knows no values
                world.compare_offer(site, event.id.key, incoming.message, str(refused.pop()) if refused else "held")
        world.seen["late held"] += intakes.late - late
        return actions

    intakes.offer, intakes.screened = watched_offer, watched_screened
