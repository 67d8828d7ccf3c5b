"""A learner whose syncer never returns: it ends by itself, says so, and leaves what it has trained in a file."""

import pytest
import safetensors.torch

from tests.accept.stage import SLOW_MACHINE_S, Stage

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]


def test_it_ends_with_code_3_and_names_the_file(stage: Stage) -> None:
    """That the file begins another run: `tests/node/test_ends.py`."""
    stage.write(learner={"give_up_after_s": 2.0, "silent_after_s": 0.5})
    syncer, learner = stage.sync(), stage.learner("a")
    stage.until(lambda: stage.member("a").get("rounds"), "merged work", syncer, learner)
    syncer.kill()
    assert learner.wait() == 3, learner.errors
    assert "learner.give_up_after_s is 2" in learner.errors
    assert "Traceback" not in learner.errors
    left = stage.run_dir / "learners" / "a-last.safetensors"
    assert str(left) in learner.errors
    assert safetensors.torch.load_file(left)
    assert all(counters.left for counters in stage.counters("a"))
