"""`zdiloco config`: check says what is wrong, show prints every key."""

import tomllib
from pathlib import Path

import pytest

from zdiloco.cli.main import run
from zdiloco.config import RunConfig, describe, from_tree, load


def run_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return str(path)


def test_show_prints_every_key_and_can_be_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_file(tmp_path, "[sync]\nsync_period = 12\n")
    assert run(["config", "show", path, "--set", "net.port=6000", "--set", "run.name=mine"]) == 0
    text = capsys.readouterr().out
    tree = tomllib.loads(text)
    assert {f"{section}.{name}" for section, table in tree.items() for name in table} == {k.path for k in describe()}
    assert from_tree(tree) == load(path, ["net.port=6000", "run.name=mine"])
    assert (tree["sync"]["sync_period"], tree["net"]["port"], tree["run"]["name"]) == (12, 6000, "mine")
    for key in describe():
        assert key.doc in text
        assert not key.unit or f"[{key.unit}]" in text


def test_show_of_an_empty_file_is_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", run_file(tmp_path, "")]) == 0
    assert from_tree(tomllib.loads(capsys.readouterr().out)) == RunConfig()


def test_check_of_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", run_file(tmp_path, "[run]\nname = 'x'\n")]) == 0
    assert "good" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[sync]\nsync_perod = 3\n", "did you mean sync.sync_period?"),
        ("[sync]\nsync_period = 'x'\n", "whole number"),
        ("[sync\n", "is not TOML"),
        ("[net]\nlisten = '0.0.0.0'\n", "net.insecure"),
        ("[relay]\nlisten = '0.0.0.0'\n", "net.insecure"),
    ],
)
@pytest.mark.parametrize("command", ["check", "show"])
def test_a_wrong_file_is_one_line_and_code_2(
    command: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_file(tmp_path, text)
    assert run(["config", command, path]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert path in said.err
    assert said.err.count("\n") == 1


def test_a_wrong_override_names_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", run_file(tmp_path, ""), "--set", "sync.gamma=7"]) == 2
    assert "--set sync.gamma=7" in capsys.readouterr().err
    assert run(["config", "check", str(tmp_path / "nothing.toml")]) == 2
    assert "nothing.toml: cannot be read" in capsys.readouterr().err
