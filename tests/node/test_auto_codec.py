"""`learner.codec = "auto"` over loopback: contributions of one learner in one codec after the other; status tells."""

from collections.abc import Callable

import pytest

from tests.node.conftest import Run
from tests.node.test_loopback import assert_balanced, node_of
from zdiloco.core.codec_choice import LADDER, CodecChoice
from zdiloco.node.status import status_of

pytestmark = pytest.mark.net


def test_a_learner_may_change_its_codec_between_contributions(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodecChoice, "judge", lambda *at: "")  # here the test chooses
    run = run_of(learner={"codec": "auto"})
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: bool(trainer.node), "the learner")
    choice = node_of(trainer).machine.outflow.codec
    assert choice is not None
    for codec in ("int8", *LADDER, *reversed(LADDER)):
        choice.codec, choice.why = codec, f"the test wants {codec}"
        run.until(lambda codec=codec: syncer.machine.fleet.members["a"].codec == codec, codec)
        rounds = syncer.machine.rounds
        run.until(lambda rounds=rounds: syncer.machine.rounds > rounds + 4, "rounds with it")
    [shown] = [learner for learner in status_of(syncer)["learners"] if learner["name"] == "a"]
    assert shown["codec"] == codec
    why = f"the test wants {codec}"
    run.until(lambda: syncer.machine.fleet.members["a"].codec_why == why, "the reason, with a heartbeat")
    assert status_of(syncer)["learners"][0]["codec_why"] == why
    assert node_of(trainer)._acts._meter.bytes_s > 0.0, "the link is measured"
    assert not syncer.machine.intakes.refused.get("layout")
    trainer.stop()
    assert trainer.error is None
    run.stop_syncer()
    assert_balanced(run.config.run.path, syncer)
