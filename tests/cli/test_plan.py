"""`zdiloco plan`: what it prints, that its document tells the truth, and one line where something cannot be."""

import json
import re
import shlex
from pathlib import Path

import pytest

from zdiloco.cli.main import run
from zdiloco.core.params import SyncParams
from zdiloco.doctor import kernel
from zdiloco.sim.recorded import RecordedWorld
from zdiloco.trace import FILE, write_trace

DOCUMENT = Path(__file__).parents[2] / "docs" / "plan.md"
CONFIG = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 1000, "tie_word_embeddings": True,
}  # fmt: skip


def examples() -> list[tuple[str, str]]:
    """Every command of the document that is shown with its output, and that output."""
    shown = r"^```\n\$ bin/zdiloco (plan .*?[^\\])\n(.*?)\n```$"
    blocks = re.findall(shown, DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    return [(command.replace("\\\n", " "), output) for command, output in blocks]


@pytest.mark.parametrize("number", range(2))
def test_the_document_shows_what_is_printed(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(examples()) == 2
    command, output = examples()[number]
    assert run(shlex.split(command)) == 0
    assert capsys.readouterr().out.strip() == output.strip()


@pytest.mark.parametrize(("machine", "told"), [("bbr", "bbr"), ("reno", "reno"), ("vegas", "cubic"), (None, "cubic")])
def test_losses_are_counted_for_the_congestion_control_of_the_machine_or_the_one_that_is_said(
    machine: str | None, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named where packets are lost, and only there."""
    monkeypatch.setattr(kernel, "read_kernel", lambda: kernel.Kernel(congestion=machine))
    heads = []
    for words in (["--loss", "0.01"], ["--loss", "0.01", "--congestion", "bbr"], []):
        assert run(["plan", "--parameters", "1e9", *words]) == 0
        heads.append(capsys.readouterr().out.splitlines()[0])
    assert heads[0].endswith(f", TCP's {told}")
    assert heads[1].endswith(", TCP's bbr")
    assert "TCP" not in heads[2]


def test_json_is_one_object_of_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "--parameters", "1e9", "--region", "a:gbit=5,relay", "--region", "b", "--egress-price", "0.05"]
    assert run([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["flows"]) == {"learner", "a", "b", "syncer"}
    assert [trip["region"] for trip in found["rounds"]["trips"]] == ["a", "b"]
    assert found["bill"]["ring_day"] > found["bill"]["day"] > 0
    assert found["room"]["relay"] > 0


def test_a_model_is_read_from_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Embedding, two layers of attention and MLP, norms: a sum made by hand."""
    place = tmp_path / "config.json"
    place.write_text(json.dumps(CONFIG))
    assert run(["plan", "--model", str(place), "--set", "sync.num_fragments=4"]) == 0
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert capsys.readouterr().out.startswith(f"{1000 * 64 + 64 + 2 * layer:,} parameters in 4 fragments")


def test_the_task_of_a_run_file_is_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "run.toml"
    place.write_text('[task]\npreset = "tiny"\n[sync]\nsync_period = 7\n')
    assert run(["plan", str(place), "--gbit", "0.01"]) == 0
    assert "H = 7, K = 1" in capsys.readouterr().out


def test_a_plan_is_printed_beside_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = RecordedWorld(SyncParams(sync_period=8), 2)
    world.join("a", 0.05)
    world.run(6.0)
    write_trace(tmp_path / FILE, world.told)
    assert run(["plan", "--against", str(tmp_path), "--set", "sync.num_fragments=2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["planned", "measured", "ratio"]
    assert [row.split()[0] for row in rows] == ["bytes", "from", "answer,", "grace,", "contributions"]


WRONG = {
    "--parameters nan": "the model has nan parameters",
    "--parameters 0": "the model has 0 parameters",
    "--parameters 1e9 --model x": "does not go with",
    "--regions 2 --region a": "does not go with",
    "--region a --region a": "two regions are named 'a'",
    "--region a:gbit=fast": "gbit is 'fast'",
    "--learners 0": "learners is 0",
    "--gbit 0": "gbit_s is 0",
    "--loss 1": "loss is 1",
    "--rtt-ms inf": "rtt_s is inf",
    "--days -1": "--days is -1",
    "--egress-price nan": "--egress-price is nan",
    "--merge-rate 0": "--merge-rate is 0",
    "--syncer-gbit nan": "Gbit/s",
    "--set sync.min_quorum=9": "sync.min_quorum is 9",
    "--set sync.hurry=1": "unknown key sync.hurry",
    "--model nowhere.json": "nowhere.json: cannot be read",
    "--against nowhere": "there is no nowhere",
}


@pytest.mark.parametrize("options", WRONG)
def test_what_cannot_be_is_one_line_and_exit_code_2(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *options.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert WRONG[options] in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": -1}', '{"hidden_size": 1e400}', "{}"])
def test_a_config_that_is_none_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "config.json"
    place.write_text(text)
    assert run(["plan", "--model", str(place)]) == 2
    assert "config.json: " in capsys.readouterr().err
