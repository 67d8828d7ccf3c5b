"""The end of a run with real processes: everybody holds the bytes of the last checkpoint; who is taken over stops."""

import signal

import pytest
import torch

from tests.accept.own_script import TopicNet, digest
from tests.accept.stage import SLOW_MACHINE_S, Stage, assert_balanced
from zdiloco.cli.main import run
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.layout import Layout

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]


def test_everybody_ends_with_the_very_values_of_the_last_checkpoint(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """D-64: the target is reached, and each exits 0 with the same bytes, buffers too: Theta, not what was published."""
    stage.write(run={"target_tokens": 100_000, "dir": str(stage.folder / "run")})
    everybody = [stage.sync(), stage.script("a", seed=1), stage.script("b", seed=2, pace_s=0.02)]
    assert [child.wait() for child in everybody] == [0, 0, 0], [child.errors for child in everybody]
    ends = [child.facts[-1]["end"] for child in everybody[1:]]
    cut, model = stage.cut(), TopicNet()
    binding = Binding(model, Layout.from_obj(dict(cut.layout)))
    for part in cut.fragments:
        binding.load_(part.fragment, part.theta)
        assert part.codec == "fp32"
        assert torch.equal(part.value, part.theta.view(torch.uint8))
    assert ends == [digest(model)] * 2
    assert "everybody has left" in everybody[0].errors
    assert_balanced(stage.fates())
    assert run(["ledger", "verify", str(stage.run_dir)]) == 0
    count = len(cut.fragments)
    assert f"the journal says the same of {count} of {count} fragments" in capsys.readouterr().out.splitlines()


def test_a_syncer_that_wakes_up_beside_its_successor_is_fenced_by_the_disk(stage: Stage) -> None:
    """The lock is lost; no learner reaches the old one: it stops before it commits a checkpoint, and says why."""
    old = stage.sync()
    learner = stage.script("a", pace_s=0.01)
    stage.until(lambda: stage.rounds() >= 5, "rounds", old, learner)
    old.send(signal.SIGSTOP)
    learner.kill()
    (stage.run_dir / "syncer.lock").unlink()
    elsewhere = ("--set", f"net.port={stage.port + 10}")
    new = stage.sync(*elsewhere)
    stage.until(lambda: "begins" in new.errors, "the successor's epoch", new)
    old.send(signal.SIGCONT)
    assert old.wait() == 3, old.errors
    assert "a newer syncer runs this run" in old.errors
    assert "Traceback" not in old.errors
    stage.end(new)
