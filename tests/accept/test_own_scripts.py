"""The promise to a user: a script of one's own and five lines of zdiloco, against a bare `zdiloco sync`."""

import math

import pytest
import torch
from torch import nn

from tests.accept.own_script import BATCH, LENGTH, TopicNet, batch
from tests.accept.stage import SLOW_MACHINE_S, Stage, assert_balanced
from zdiloco.rundir.archive import Cut
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.layout import Layout

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S)]
TARGET_TOKENS = 500 * BATCH * LENGTH
MARGIN = 0.3
"""Of the first loss, which is that of guessing: ln 4."""
LOOKS = 20


def loss_of(model: nn.Module) -> float:
    """Mean loss on texts that no script has seen."""
    generator = torch.Generator().manual_seed(7)
    looks = (batch(generator) for _ in range(LOOKS))
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(texts), topics) for texts, topics in looks]
    return float(torch.stack(losses).mean())


def test_two_scripts_train_one_model(cold_stage: Stage) -> None:
    stage = cold_stage
    stage.write(run={"target_tokens": TARGET_TOKENS}, sync={"min_quorum": 2})
    syncer = stage.sync()
    scripts = [stage.script("east", seed=1, pace_s=0.001), stage.script("west", seed=2, pace_s=0.002)]
    assert [script.wait() for script in scripts] == [0, 0]
    assert syncer.wait() == 0, syncer.errors

    (east, east_end), (west, west_end) = (script.facts for script in scripts)
    assert east["own"] != west["own"]
    assert east["start"] == west["start"]  # with a quorum of two nothing was merged before both were there
    assert (east["tracked"], west["tracked"]) == (1000, 2000)  # an integer buffer is nobody else's business
    for began, ended in ((east, east_end), (west, west_end)):
        assert ended["tracked"] == began["tracked"] + ended["steps"]
        assert ended["why"] == "the target is reached"
        assert ended["first"] == pytest.approx(math.log(4), rel=0.3)
        assert ended["last"] < ended["first"] - MARGIN
    assert_balanced(stage.fates())
    assert_the_checkpoint_is_the_model(stage.cut())


def assert_the_checkpoint_is_the_model(cut: Cut) -> None:
    """What `zdiloco sync` leaves behind loads into the user's model, buffers included, and is trained."""
    assert cut.progress_tokens >= TARGET_TOKENS
    model = TopicNet()
    before = loss_of(model.train())
    untouched = model.norm.running_mean.clone()
    binding = Binding(model, Layout.from_obj(dict(cut.layout)))
    for part in cut.fragments:
        binding.load_(part.fragment, part.theta)
    assert not torch.equal(model.norm.running_mean, untouched)
    assert int(model.norm.num_batches_tracked) == LOOKS  # by the looks before; no checkpoint holds it
    assert loss_of(model.eval()) < before - MARGIN
