"""The syncers of a world: what their machines ask for is done here, in virtual time."""

from abc import abstractmethod
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from zdiloco import trace
from zdiloco.core import machine as m
from zdiloco.core.messages import Call, Hello, Loan, Message, Update
from zdiloco.core.params import SyncParams
from zdiloco.core.syncer import SyncerMachine
from zdiloco.sim.actors import Actor, Site
from zdiloco.sim.bodies import SyncerBody, SyncerDisk, contribution_name
from zdiloco.sim.depot import Depot
from zdiloco.sim.freight import WholeFreight
from zdiloco.sim.premerge import bundle_name
from zdiloco.sim.relays import Relays
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.stage import MOST_PUBLISHED, Stage
from zdiloco.sim.work import Parcel, ids_of
from zdiloco.units import ContributionId, MemberKey
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.transfer import Credit

MERGE_S = 0.002


class SyncerSide(Stage):
    """One or more syncer processes; `site` is the one that a newcomer reaches."""

    freight: WholeFreight
    relays: Relays
    inbox_params: InboxParams

    def __init__(self, params: SyncParams, num_fragments: int, seed: int, exact: bool, syncer: dict[str, Any]) -> None:
        super().__init__(params, num_fragments, seed, exact)
        self.delta_codec, self.premerge = syncer.pop("delta_codec", "none"), syncer.pop("premerge", False)
        self.syncer_args = {"run_id": "run", **syncer}

    def start_syncer(self, disk: SyncerDisk) -> Site:
        """Start a syncer process on this disk; everybody without a living syncer, and every newcomer, reaches it."""
        target, sync = self.syncer_args.get("target_tokens", 0), asdict(self.params)
        run_id = self.syncer_args["run_id"]
        self.record(trace.Start(t=self.now, wall=self.now, run_id=run_id, target_tokens=target, sync=sync))
        ident = self.rng.getrandbits(60) + 1
        machine = SyncerMachine(self.params, ident=ident, now=self.now, known=disk.known(), **self.syncer_args)
        machine.intakes.bundles.allowed = self.premerge
        depot = Depot(self.inbox_params)
        body = SyncerBody(
            disk, self.num_fragments, machine.run_id, lambda name, what: self.publish(site, name, what),
            self.delta_codec,
        )  # fmt: skip
        site = Site(number=len(self.sites), machine=machine, body=body, disk=disk, depot=depot)
        if not self.freight.credited:
            site.pulls.open()
        self.site = site
        for actor in self.actors.values():
            if actor.site is None or not actor.site.alive:
                actor.site = site
        self.relays.syncer_is_here(site)
        self.sites.append(site)
        self.syncer_timer(site)
        return site

    def publish(self, site: Site, name: str, parcel: Parcel) -> Any:
        """Offer a parcel of a syncer; whole bodies are found by their names wherever they go."""
        self.published[name] = parcel
        if not self.exact and len(self.published) > MOST_PUBLISHED * self.num_fragments:
            del self.published[next(iter(self.published))]
        return self.freight.put(site, name, parcel)

    def kill_syncer(self, site: Site) -> None:
        """SIGKILL: nothing of the process is left but its disk."""
        if site.alive and site is self.site:
            self.record(trace.Killed(t=self.now))
        self.end_syncer(site)

    def end_syncer(self, site: Site) -> None:
        """The process is no more, for whatever reason."""
        site.alive = False
        site.waiting.clear()
        if self.site is site:
            self.site = None

    def syncer_timer(self, site: Site) -> None:
        """Keep the timer at the machine's deadline."""
        self.arm(site, site.machine.deadline(), partial(self.tell_syncer, site, m.TimerDue()))

    def tell_syncer(self, site: Site | None, event: Any) -> None:
        """A syncer's machine is told an event, unless it is dead; a stopped one hears it later."""
        if site is None or not site.alive:
            return
        if site.stopped:
            self.into(site, partial(self.tell_syncer, site, event))
            return
        if isinstance(event, m.Received) and isinstance(event.message, Hello):
            self.freight.greeted(site, event.key)
        actions = site.machine.handle(event, self.now)
        if self.on_record is not None and site is self.site:  # one that has been taken over is in its own trace
            for record in site.scribe.look(self.now, event, actions, site.machine):
                self.record(record)
        if self.record_events:
            self.record_event(trace.SYNCER, event, actions)
        for action in actions:
            self.do_syncer(site, action)
        self.syncer_timer(site)
        if self.on_event is not None:
            self.on_event(site)

    def do_syncer(self, site: Site, action: Any) -> None:
        """Carry one action of a syncer out."""
        if isinstance(action, m.Send):
            self.down(site, action.key, action.message, "direct")
        elif isinstance(action, m.Broadcast):
            self.broadcast(site, action.message)
        elif isinstance(action, m.Publish):
            self.broadcast(site, action.update)
            self.freight.publish(site, action.update.body.transfer)
        elif isinstance(action, m.Serve):
            site.pulls.ask(action.key, action.fragment, NBYTES, self.now, trains=action.trains)
            self.serve(site)
        elif isinstance(action, m.Fetch):
            self.freight.fetch(site, action.key, action.message)
        elif isinstance(action, m.OfferLoan):
            self.offer_loan(site, action)
        elif isinstance(action, m.Save):
            self.save(site, action)
        elif isinstance(action, m.Note):
            self.seen["fenced"] += action.what == "fenced"
            self.note("syncer", action.what, action.why)
        elif isinstance(action, m.Stop):
            self.stops.append(f"syncer: {action.reason}")
            if site is self.site:
                self.record(trace.Stop(t=self.now, code=action.exit_code, why=action.reason))
            self.end_syncer(site)
        else:
            self.work_syncer(site, action)

    def serve(self, site: Site) -> None:
        """Offer whole states to those whose turn it is, and look again while others wait."""
        if not site.alive:
            return
        for key, fragment in site.pulls.due(self.now):
            site.pulls.offered(key, self.now)
            self.down(site, key, site.body.update(fragment), "direct")
        at = site.pulls.deadline()
        if at is not None and not site.looks:
            site.looks = True
            self.at(at - self.now, partial(self.look, site))

    def look(self, site: Site) -> None:
        """The time has come to look at the pulls again."""
        site.looks = False
        self.into(site, partial(self.serve, site))

    def credited(self, site: Site, key: MemberKey, credit: Credit) -> None:
        """A learner gives credit for a body of this syncer: of a whole state that tells how far it is."""
        kind, _, rest = credit.transfer.partition("/")
        offered = site.depot.bodies.get(credit.transfer)
        if kind == "s" and offered is not None:
            left_bytes = max(0, offered.nbytes - credit.received)
            site.pulls.credited(key, int(rest.partition("/")[0]), left_bytes, self.now)
            self.serve(site)

    def save(self, site: Site, action: m.Save) -> None:
        """A checkpoint of the values as they are now is durable a little later."""
        states = list(site.body.states)
        self.later(site, self.save_s, lambda: self.finish_save(site, states, action))

    def finish_save(self, site: Site, states: list[Any], action: m.Save) -> None:
        """It is durable now; unless another syncer has taken over, which as a stand-by does not acknowledge it."""
        if site is self.site:
            self.tell_syncer(site, site.body.save(states, action))
        else:
            self.tell_syncer(site, m.SaveFailed(reason="the stand-by has taken over and does not acknowledge it"))

    def work_syncer(self, site: Site, action: Any) -> None:
        """Carry out what is done with values."""
        if isinstance(action, m.Restamp) and action.exact:
            site.pulls.open()
        if isinstance(action, m.Merge):
            self.on_merge(site, action)
        for event in site.body.do(action):
            self.later(site, MERGE_S, partial(self.tell_syncer, site, event))
        if isinstance(action, m.Free):
            self.freight.cancel(site, action.id.key, transfer_of(action.id))
        elif isinstance(action, m.CancelFetch):
            self.freight.cancel(site, action.key, action.message.body.transfer)
            if isinstance(action.message, Loan):
                self.freight.drop(site, loan_name(site, action.message))
        elif self.exact and isinstance(action, m.Merge | m.Restamp | m.TakeHandback | m.TakeInitial):
            for fragment, state in enumerate(site.body.states):
                self.history[fragment, state.stamp] = state

    def offer_loan(self, site: Site, action: m.OfferLoan) -> None:
        """The bytes of a loan are on offer for its borrower."""
        parcel = site.body.fetched[action.lender, action.loan.body.transfer]
        body = self.publish(site, loan_name(site, action.loan), parcel)
        self.down(site, action.key, replace(action.loan, body=body), "direct")

    def on_merge(self, site: Site, action: m.Merge) -> None:
        """A round closes: note whose work goes into which version."""
        if self.exact:
            for part in action.parts:
                for work in ids_of(site.body.payloads[part.id]):
                    self.merged_at[action.fragment, work] = self.now

    def broadcast(self, site: Site, message: Message) -> None:
        """To everybody who listens: encoded once, as PUB does."""
        if isinstance(message, Call):
            self.calls.append((self.now, message.fragment, message.version))
        word, nbytes = self.carry(message)
        for actor in list(self.actors.values()):
            if not actor.link.behind:
                self.send_down(site, actor.key, word, nbytes, "broadcast")
        self.relays.cast(site, word, nbytes)

    def down(self, site: Site, key: MemberKey, message: Message, road: str) -> None:
        """To one learner."""
        word, nbytes = self.carry(message)
        self.send_down(site, key, word, nbytes, road)

    def send_down(self, site: Site, key: MemberKey, word: Any, nbytes: int, road: str) -> None:
        """A word goes down the link of a learner that listens to this syncer."""
        actor = self.actors.get(key)
        if actor is None and self.relays.leads(site, key):  # a relay, which merges
            self.relays.down(key, word, nbytes)
            return
        if actor is None or actor.site is not site or self.lose(road, word) or actor.link.down.is_missed(word):
            return
        if actor.link.behind:
            self.relays.down(key, word, nbytes)
            return
        event = m.Received(key=m.SYNCER, message=word)
        self.send(actor.link.down, nbytes, actor.link.is_cut, partial(self.tell, actor, event))

    def fetched(self, site: Site, key: MemberKey, message: m.Fetchable, parcel: Parcel) -> None:
        """All bytes of a body are here."""
        self.tell_syncer(site, site.body.take(key, message, parcel))

    @abstractmethod
    def whole_here(self, actor: Actor, what: Update | Loan, parcel: Parcel) -> None:
        """The body of an update or a loan has come to a learner."""

    @abstractmethod
    def lost_here(self, actor: Actor, what: Update | Loan) -> None:
        """It will not come."""


def transfer_of(id_: ContributionId) -> str:
    """The name of the transfer of a contribution, or of a bundle."""
    return bundle_name(id_.key, -id_.seq) if id_.seq < 0 else contribution_name(id_.fragment, id_.seq)


def loan_name(site: Site, loan: Loan) -> str:
    """The name of a loan's transfer to its borrower."""
    return f"l/{site.number}.{loan.number}"
