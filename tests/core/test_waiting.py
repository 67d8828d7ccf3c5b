"""Whom a syncer waits for is said when it changes, and only then."""

from tests.core.samples import ANN, BOB
from zdiloco.core.machine import Note, Received, Send, TimerDue
from zdiloco.core.messages import Decline, Hello
from zdiloco.core.params import SyncParams
from zdiloco.core.status import status
from zdiloco.core.syncer import SyncerMachine
from zdiloco.core.waiting import Waiting
from zdiloco.sim.world import World
from zdiloco.units import MemberKey


class Ear:
    """Keeps what a syncer says about waiting."""

    def __init__(self, machine: SyncerMachine) -> None:
        self.said: list[Note] = []
        self._look = machine.waiting.look
        machine.waiting.look = self.look

    def look(self) -> list[Note]:
        notes = [note for note in self._look() if isinstance(note, Note)]
        self.said += notes
        return notes

    def take(self) -> list[str]:
        told, self.said = [f"{note.what}: {note.why}" for note in self.said], []
        return told


def test_a_syncer_without_a_learner_says_so_once() -> None:
    machine = SyncerMachine(SyncParams(), run_id="run-1", ident=1, now=0.0)
    first, later = machine.handle(TimerDue(), 0.0), machine.handle(TimerDue(), 1.0)
    assert [note.what for note in first if isinstance(note, Note)] == ["waits for learners"]
    assert not any(isinstance(action, Note) for action in later)
    assert "no learner has come" in machine.waiting.why()
    machine.handle(Received(key=ANN, message=Hello(name=ANN.name, incarnation=ANN.incarnation)), 2.0)
    assert machine.waiting.why() == "", "one has come, and is asked for its values"


def test_a_quorum_above_the_learners_is_said_until_they_come_and_when_they_go() -> None:
    world = World(SyncParams(min_quorum=2), 2)
    ear = Ear(world.site.machine)
    ann = world.join("a")
    world.run(5.0)
    told = ear.take()
    assert "1 of the K = 2 learners that a round needs (sync.min_quorum): no round is called" in told[-1]
    world.run(15.0)
    assert ear.take() == [], "once is enough"
    bob = world.join("b")
    world.run(20.0)
    assert ear.take() == ["waits no longer: learners here: 2"]
    for learner in (ann, bob):
        world.kill(learner)
    world.run(40.0)
    assert "nobody trains: 0 of the K = 2" in ear.take()[-1]


def test_a_quorum_that_follows_the_fleet_down_is_not_waited_for() -> None:
    world = World(SyncParams(min_quorum=2, on_lost_quorum="degrade"), 2)
    world.join("a")
    world.run(5.0)
    assert world.site.machine.waiting.why() == ""


def refusals(machine: SyncerMachine, key: MemberKey, **hello: str) -> tuple[list[str], list[str]]:
    """What the log, and the process itself, are told after such a hello."""
    said = Hello(name=key.name, incarnation=key.incarnation, **hello)
    actions = machine.handle(Received(key=key, message=said), 1.0)
    notes = [action.what for action in actions if isinstance(action, Note)]
    sent = [action.message for action in actions if isinstance(action, Send) and action.key == key]
    return notes, [getattr(message, "reason", "") for message in sent]


def test_a_learner_of_another_run_is_turned_away_before_it_can_begin_this_one() -> None:
    machine = SyncerMachine(SyncParams(), run_id="mine-0123", ident=1, now=0.0)
    assert isinstance(machine.waiting, Waiting)
    machine.handle(TimerDue(), 0.0)
    assert refusals(machine, ANN, run_name="yours") == ([f"{ANN.name} is turned away"], ["run"])
    assert refusals(machine, ANN, run_name="yours") == ([], ["run"]), "the log has it already"
    assert machine.reception.donation.donor is None
    assert refusals(machine, BOB, run_name="mine")[1] == [""], "asked for its values"
    assert machine.reception.donation.donor == BOB


def test_those_turned_away_are_remembered_in_a_bounded_place() -> None:
    machine = SyncerMachine(SyncParams(), run_id="mine-0123", ident=1, now=0.0)
    for ident in range(1, 600):
        refusals(machine, MemberKey("x", ident), run_name="yours")
    assert len(machine.reception.turned_away) <= 256


def test_status_says_how_long_one_that_declined_will_perhaps_be_busy() -> None:
    world = World(SyncParams(min_quorum=2), 1)
    ann, _ = world.join("a"), world.join("b")
    desk = world.site.machine.desk
    world.run_until(lambda: bool(desk.fragments and desk.fragments[0].round), 10.0)
    version = desk.fragments[0].round.version
    decline = Decline(fragment=0, version=version, reason="uplink busy", eta_s=1.5)
    world.tell_syncer(world.site, Received(key=ann.key, message=decline))
    found = status(world.site.machine, world.now)["fragments"][0]["round"]
    assert found["declined"] == {"a": "uplink busy (perhaps for 1.5 s)"}
