"""A learner machine with `codec = "auto"`: each snapshot names its codec, and a change is said with its reason."""

from zdiloco.core.duty import DutyEvent, DutyState
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.machine import SYNCER, ContributionLost, Encoded, LearnerAction, Note, Received, Snapshot, StepDone
from zdiloco.core.messages import Ack, Beat, Body, Contribution
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.units import Epoch, MemberKey, Stamp

EPOCH = Epoch(1, 1)
NBYTES = {"bf16": 2000, "int8": 1016, "4bit": 532}


def machine_of(codec: str) -> LearnerMachine:
    """A learner in the middle of its training, with one fragment."""
    params = LearnerParams(codec=codec, silent_after_s=1e6, answer_timeout_s=1e6)
    machine = LearnerMachine(
        MemberKey("a", 1), SyncParams(sync_period=4), params, shares=(1.0,), layout_digest="x"
    )  # fmt: skip
    machine.phase, machine.epoch, machine.duties[0].progress.seen = LearnerPhase.TRAINING, EPOCH, Stamp(EPOCH, 0)
    beat = Beat(epoch=EPOCH, open_rounds=(), versions=(0,), stable=(0,), progress=0.0)
    machine.handle(Received(key=SYNCER, message=beat), 0.0)
    return machine


def contribute(machine: LearnerMachine, now: float, link_bytes_s: float) -> list[LearnerAction]:
    """A period, a call, a snapshot, and its encoding; its transfer then comes to nothing."""
    duty, actions = machine.duties[0], list[LearnerAction]()
    for step in range(4):
        actions += machine.handle(StepDone(tokens=1, seconds=0.1), now + step / 10)
    duty.move(DutyEvent.CALLED)
    duty.version += 1
    actions += machine.handle(StepDone(tokens=1, seconds=0.1), now + 0.5)
    [cut] = [action for action in actions if isinstance(action, Snapshot)]
    codec = cut.codec or "bf16"
    body = Body(transfer=f"c/0/{cut.seq}", nbytes=NBYTES[codec], chunk_bytes=4096, digest=0)
    encoded = Encoded(fragment=0, seq=cut.seq, codec=codec, body=body, encode_s=1e-4, link_bytes_s=link_bytes_s)
    actions += machine.handle(encoded, now + 0.6)
    assert duty.state is DutyState.SENT
    machine.handle(Received(key=SYNCER, message=Ack(fragment=0, held=cut.seq, merged=0)), now + 0.7)
    return actions + machine.handle(ContributionLost(fragment=0, seq=cut.seq, reason="again"), now + 0.8)


def test_a_fixed_codec_is_left_to_the_body() -> None:
    machine = machine_of("4bit")
    [cut] = [action for action in contribute(machine, 0.0, 1.0) if isinstance(action, Snapshot)]
    assert cut.codec == ""


def test_changes_are_said_and_go_with_the_next_contribution() -> None:
    machine = machine_of("auto")
    codecs, notes, offered = [], [], []
    for turn in range(40):
        for action in contribute(machine, float(turn), 1e6 if turn < 20 else 1e3):
            if isinstance(action, Snapshot):
                codecs.append(action.codec)
            elif isinstance(action, Note) and "encodes" in action.what:
                notes.append((action.what, action.why))
            elif isinstance(message := getattr(action, "message", None), Contribution):
                offered.append(message.codec)
    assert [codec for codec, last in zip(codecs, ["", *codecs], strict=False) if codec != last] == [
        "int8", "bf16", "int8", "4bit",
    ]  # fmt: skip
    assert offered == codecs
    assert [what for what, _ in notes] == [
        "encodes contributions in bf16, no longer in int8", "encodes contributions in int8, no longer in bf16",
        "encodes contributions in 4bit, no longer in int8",
    ]  # fmt: skip
    assert "at 8 Mbit/s a period of 0.4 s needs" in notes[0][1]


def test_a_learner_that_starts_over_keeps_its_choice() -> None:
    machine = machine_of("auto")
    for turn in range(10):
        contribute(machine, float(turn), 1e6)
    choice = machine.outflow.codec
    machine.outflow.clear()
    assert machine.outflow.codec is choice
    assert choice is not None
    assert choice.codec == "bf16"
