"""The learners of a world: they step whatever happens, and what their machines ask for is done in virtual time."""

from dataclasses import replace
from functools import partial
from typing import Any

from zdiloco import trace
from zdiloco.core import machine as m
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.ledger import row_of
from zdiloco.core.messages import Body, Goodbye, Handback, InitialOffer, LayoutOffer, Loan, Message, Update, Welcome
from zdiloco.core.params import LearnerParams
from zdiloco.sim.actors import Actor, Fallen
from zdiloco.sim.bodies import LearnerBody
from zdiloco.sim.depot import Depot
from zdiloco.sim.links import Link
from zdiloco.sim.loans import OF_LOANS, do_loan, here
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.speeds import Speed
from zdiloco.sim.syncer_side import SyncerSide
from zdiloco.sim.work import Parcel
from zdiloco.units import MemberKey
from zdiloco.wire.bodies import encode_map

TOKENS = 10
"""Tokens of every inner step."""
WORK_S = 0.002
BOUNDARY_S = 0.003
STARTING_OVER = (LearnerPhase.HAILING, LearnerPhase.STOPPED)


class LearnerSide(SyncerSide):
    """The learner processes, by incarnation."""

    def join(
        self, name: str, step_s: float = 0.05, link: Link | None = None, *, speed: Speed | None = None,
        watching: bool = False, **params: Any,
    ) -> Actor:  # fmt: skip
        """Start a learner process; it begins at once."""
        key = MemberKey(name, self.rng.getrandbits(60) + 1)
        shares = (1 / self.num_fragments,) * self.num_fragments
        machine = LearnerMachine(
            key, self.params, LearnerParams(**params), shares=shares, layout_digest="layout", watching=watching
        )
        codec = params.get("codec", "fp32")
        body = LearnerBody(self.num_fragments, lambda name, what: self.freight.put(actor, name, what), codec)
        link = link or Link()
        actor = Actor(
            key=key, machine=machine, body=body, link=link, speed=speed or Speed(step_s),
            site=self.relays.site_of(link), depot=Depot(self.inbox_params),
        )  # fmt: skip
        self.actors[key] = actor
        if self.exact:
            self.everybody.append(actor)
        if name in self.known:
            self.record(trace.Returned(t=self.now, who=name))
        self.known.add(name)
        self.tell(actor, m.Started())
        return actor

    def kill(self, actor: Actor) -> None:
        """SIGKILL: what it held is gone, but for the counters that it wrote down."""
        if not actor.alive:
            return
        self.bury(actor, "dead")
        actor.alive = False
        actor.waiting.clear()
        self.actors.pop(actor.key, None)
        self.record_of(actor, trace.Killed(t=self.now, who=actor.key.name))

    def record_of(self, actor: Actor, record: trace.Record) -> None:
        """The same as `record`; of those that only watch nothing is told, as in a real run."""
        if not actor.machine.watching:
            self.record(record)

    def bury(self, actor: Actor, state: str) -> None:
        """Write down what an incarnation that ends here had done, and what goes down with it."""
        machine, body = actor.machine, actor.body
        rows = tuple(row_of(duty.progress) for duty in machine.duties)
        held = []
        for duty in machine.duties if self.exact else ():
            ids = body.progress(duty.index) | body.dropped[duty.index]
            for seq in duty.progress.kept:
                ids |= body.encoded.get((duty.index, seq), 0)
            held.append(ids)
        self.fallen.append(
            Fallen(
                key=actor.key, state=state, work=actor.work, own=actor.own, rows=rows, held=tuple(held)
            )
        )

    def learner_timer(self, actor: Actor) -> None:
        """Keep the timer at the machine's deadline."""
        self.arm(actor, actor.machine.deadline(), partial(self.tell, actor, m.TimerDue()))

    def tell(self, actor: Actor, event: Any) -> None:
        """A learner's machine is told an event, unless it is dead; a stopped one hears it later."""
        if not actor.alive:
            return
        if actor.stopped:
            self.into(actor, partial(self.tell, actor, event))
            return
        if isinstance(event, m.Received) and isinstance(event.message, Welcome):
            self.freight.welcomed(actor, event.message)
        actions = actor.machine.handle(event, self.now)
        if self.record_events:
            self.record_event(actor.key.name, event, actions)
        for action in actions:
            self.do_learner(actor, action)
        self.learner_timer(actor)
        if self.on_event is not None:
            self.on_event(actor)

    def do_learner(self, actor: Actor, action: Any) -> None:
        """Carry one action of a learner out."""
        if isinstance(action, m.Send):
            self.say(actor, action.message)
        elif isinstance(action, m.Ready):
            self.ready(actor)
        elif isinstance(action, m.Receive):
            self.freight.receive(actor, action.update, action.broadcast)
        elif isinstance(action, m.Listen):
            actor.listening = action.on
            self.freight.tuned(actor)
            if relay := self.relays.above(actor):
                self.relays.tune(relay)
        elif isinstance(action, m.SendHandback | m.SendLayout | m.SendInitial):
            self.offer(actor, action)
        elif isinstance(action, m.Reincarnate):
            self.reincarnate(actor)
        elif isinstance(action, OF_LOANS):
            do_loan(self, actor, action)
        elif isinstance(action, m.Note):
            self.note(actor.key.name, action.what, action.why)
        elif isinstance(action, m.Stop):
            self.leave(actor, action)
        else:
            self.work_learner(actor, action)

    def say(self, actor: Actor, message: Message) -> None:
        """A word to the syncer; the last one of a process ends its books."""
        self.up(actor, message)
        if isinstance(message, Goodbye):
            self.bury(actor, "left")

    def ready(self, actor: Actor) -> None:
        """Every fragment holds published values: from now on there are steps, whatever happens."""
        self.record_of(actor, trace.Ready(t=self.now, who=actor.key.name))
        if not (actor.training or actor.machine.watching):
            actor.training = True
            self.next_step(actor)

    def leave(self, actor: Actor, stop: m.Stop) -> None:
        """The process ends by its own decision."""
        self.stops.append(f"{actor.key.name}: {stop.reason}")
        if not any(fallen.key == actor.key for fallen in self.fallen[-4:]):
            self.bury(actor, "dead")
        actor.alive = False
        self.actors.pop(actor.key, None)
        self.record_of(actor, trace.Stop(t=self.now, who=actor.key.name, code=stop.exit_code, why=stop.reason))

    def work_learner(self, actor: Actor, action: Any) -> None:
        """Carry out what is done with values."""
        if isinstance(action, m.Forget) and actor.machine.phase in STARTING_OVER:
            kept = set(action.seqs) & actor.machine.duties[action.fragment].progress.kept.keys()
            for seq in kept:  # merged, and not stable: if that branch dies, this is lost
                actor.body.dropped[action.fragment] |= actor.body.encoded.get((action.fragment, seq), 0)
        for event in actor.body.do(action):
            self.later(actor, WORK_S, partial(self._answered, actor, event))
        if isinstance(action, m.Prepare) and not actor.training:
            self.later(actor, BOUNDARY_S, partial(self.tell, actor, m.Boundary()))
        elif isinstance(action, m.Forget):
            for seq in action.seqs:
                self.freight.drop(actor, f"c/{action.fragment}/{seq}")
        elif isinstance(action, m.Discard):
            self.freight.discard(actor, action.update)
        elif isinstance(action, m.Adopt) and self.on_record is not None:
            fragment, version = action.fragment, action.stamp.version
            self.record_of(actor, trace.Adopted(t=self.now, who=actor.key.name, fragment=fragment, version=version))

    def _answered(self, actor: Actor, event: m.LearnerEvent) -> None:
        """A learner's work on an action is done; what it has encoded is on offer from now on, on a metered link."""
        if isinstance(event, m.Encoded):
            actor.meter.offered(event.body.transfer, event.body.nbytes, self.now)
            event = replace(event, encode_s=WORK_S, link_bytes_s=actor.meter.bytes_s)
        self.tell(actor, event)

    def offer(self, actor: Actor, action: Any) -> None:
        """Offer once what a syncer that starts asks for."""
        actor.offers += 1
        number = actor.offers
        if isinstance(action, m.SendLayout):
            record = encode_map({"digest": "layout", "fragments": self.num_fragments})
            body = self._put(actor, f"layout/{number}", Parcel(0, 0, record))
            self.up(actor, LayoutOffer(digest="layout", body=body))
        elif isinstance(action, m.SendInitial):
            body = self._put(actor, f"initial/{number}", Parcel(0, NBYTES))
            self.up(actor, InitialOffer(fragment=action.fragment, body=body))
        else:
            fragment, stamp = action.fragment, action.stamp
            self.returned[actor.key, fragment, stamp] = actor.body.adopted[fragment]
            parcel = Parcel.of(actor.body.reference[fragment], NBYTES, action.map_)
            body = self._put(actor, f"handback/{number}", parcel)
            self.up(actor, Handback(fragment=fragment, stamp=stamp, codec="fp32", value_bytes=NBYTES, body=body))

    def _put(self, actor: Actor, name: str, parcel: Parcel) -> Body:
        return self.freight.put(actor, name, parcel)

    def reincarnate(self, actor: Actor) -> None:
        """The process goes on under a new incarnation."""
        self.bury(actor, "dead")
        del self.actors[actor.key]
        actor.key = MemberKey(actor.key.name, self.rng.getrandbits(60) + 1)
        self.actors[actor.key] = actor
        actor.body.adopted.clear()
        actor.body.inner = [0] * self.num_fragments
        actor.work = actor.own = 0
        self.freight.reborn(actor)
        name, incarnation = actor.key.name, f"{actor.key.incarnation:016x}"
        self.record_of(actor, trace.Reborn(t=self.now, who=name, incarnation=incarnation))
        self.tell(actor, m.Reborn(incarnation=actor.key.incarnation))

    def whole_here(self, actor: Actor, what: Update | Loan, parcel: Parcel) -> None:
        """All bytes of an update or a loan are here."""
        if isinstance(what, Loan):
            here(self, actor, what, parcel)
            return
        actor.body.learn(what, parcel)
        self.tell(actor, m.UpdateReady(update=what, records=parcel.rows()))

    def bytes_here(self, actor: Actor) -> None:
        """Bytes of some body are here that were not before."""
        if actor.machine.phase is LearnerPhase.FINISHING:
            self.tell(actor, m.ChunkArrived())

    def lost_here(self, actor: Actor, what: Update | Loan) -> None:
        """They will not come."""
        if isinstance(what, Loan):
            self.tell(actor, m.LoanLost(number=what.number, reason="it did not come through"))
        else:
            self.tell(actor, m.UpdateLost(update=what))

    # ---- steps

    def next_step(self, actor: Actor) -> None:
        """The next step takes its time."""
        seconds = actor.speed.next_s(self.rng)
        self.at(seconds, partial(self.step_ends, actor, seconds))

    def step_ends(self, actor: Actor, seconds: float) -> None:
        """A step ends, unless its process is dead; a stopped one ends it when it goes on."""
        if not actor.alive:
            return
        if actor.stopped:
            actor.step_waits = True
            return
        self.step(actor, seconds)
        if actor.alive:
            self.next_step(actor)

    def step(self, actor: Actor, seconds: float) -> None:
        """One inner step is done."""
        work = self.next_work
        self.next_work += 1
        actor.steps += 1
        actor.work += 1
        if self.exact:
            actor.work_at[work] = self.now
            actor.own |= 1 << work
            actor.body.train(work)
        if self.record_steps:
            self.record(trace.Step(t=self.now, who=actor.key.name, step=actor.work, trained=TOKENS * actor.work))
        self.tell(actor, m.StepDone(tokens=TOKENS, seconds=seconds))

    # ---- words up

    def up(self, actor: Actor, message: Message) -> None:
        """A learner says something to its syncer."""
        word, nbytes = self.carry(message)
        if self.lose("up", word):
            return
        if actor.link.behind:
            what = partial(self.relays.hears(actor.link.behind), actor.key, word)
        else:
            what = partial(self.tell_syncer, actor.site, m.Received(key=actor.key, message=word))
        self.send(actor.link.up, nbytes, actor.link.is_cut, what)
