"""wan-lab without root, and its help: no lab is put up here; `tests/wanlab/test_lab.py` does."""

import os

import pytest

from zdiloco.cli import wanlab
from zdiloco.cli.main import run

WANTS_ROOT = [
    ["up", "us-4-region"],
    ["down"],
    ["exec", "a", "true"],
    ["set", "x", "loss=1%"],
    ["partition", "x"],
    ["heal"],
]


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(words, command=wanlab.wan_lab, name="wan-lab")
    return code, capsys.readouterr().err


@pytest.mark.parametrize("words", WANTS_ROOT, ids=lambda words: words[0])
def test_without_root_it_says_what_is_needed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, err = said(words, capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("wan-lab: wan-lab needs root")


def test_a_wrong_name_of_a_lab_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = said(["--lab", "../x", "show"], capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert "--lab is '../x'" in err


def test_every_command_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(wanlab.wan_lab.commands) == {"up", "down", "show", "exec", "set", "partition", "heal"}
    for name in wanlab.wan_lab.commands:
        assert run([name, "--help"], command=wanlab.wan_lab, name="wan-lab") == 0
    assert "REGION" in capsys.readouterr().out
