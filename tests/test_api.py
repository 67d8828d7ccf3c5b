"""The learner as users write it: a path, or settings; and what is wrong is said before anything is dialled."""

from pathlib import Path

import pytest
import torch
from torch import nn

from zdiloco.api import Learner
from zdiloco.config import RunConfig, load, to_toml
from zdiloco.errors import ConfigError


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_path_and_overrides_become_settings(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(to_toml(RunConfig()))
    assert Learner._settings(str(path), ("sync.gamma=0.25",)).sync.gamma == 0.25
    config = RunConfig()
    assert Learner._settings(config, ()) is config


def test_overrides_need_a_path() -> None:
    with pytest.raises(ConfigError, match="overrides go with the path"):
        Learner(*parts(), RunConfig(), name="a", overrides=["sync.gamma=0.5"])


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Learner(*parts(), tmp_path / "none.toml", name="a")


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "-a", "a/b", "a:b"])
def test_a_name_that_cannot_be_is_said(name: str) -> None:
    with pytest.raises(ConfigError, match="the learner's name"):
        Learner(*parts(), RunConfig(), name=name)


def test_more_fragments_than_tensors_is_said(tmp_path: Path) -> None:
    settings = load(Path(__file__).parents[1] / "config" / "run.toml", [f"run.dir={tmp_path}", "sync.num_fragments=3"])
    with pytest.raises(ConfigError, match="3"):
        Learner(*parts(), settings, name="a")
