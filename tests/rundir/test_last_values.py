"""What a learner that gave up leaves behind: a file that a run may begin with, or a word why there is none."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from zdiloco.rundir.last_values import leave_last
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.layout import layout_of


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)


def test_its_values_lie_under_the_models_names(tmp_path: Path, model: nn.Module) -> None:
    leave_last(tmp_path, "a", Binding(model, layout_of(model, num_fragments=2)))
    found = safetensors.torch.load_file(tmp_path / "learners" / "a-last.safetensors")
    own = model.state_dict()
    assert found.keys() == own.keys() - {"1.num_batches_tracked"}
    assert all(found[name].dtype is own[name].dtype and torch.equal(found[name], own[name]) for name in found)


def test_a_disk_that_takes_none_is_said_and_the_end_goes_on(
    tmp_path: Path, model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "learners").write_text("in the way")
    leave_last(tmp_path, "a", Binding(model, layout_of(model, num_fragments=2)))
    assert "a leaves no values behind" in caplog.text
    assert "a-last.safetensors" in caplog.text
