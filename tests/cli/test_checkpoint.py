"""`zdiloco checkpoint`: what it prints, its exit codes, and one line where something is wrong."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch

from tests.accept.mounts import mount_tmpfs, skip_unless_ci, unmount
from tests.rundir.test_export import Tied, cut_of, saved
from zdiloco.cli.main import run
from zdiloco.rundir.archive import FOLDER


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Two cuts of a model with tied weights and buffers."""
    return saved(tmp_path / "run", cut_of(Tied(5), version=2), cut_of(Tied(1)))


def newest(run_dir: Path) -> Path:
    return max((run_dir / FOLDER).glob("manifest-*"))


def damage(run_dir: Path, how: str) -> None:
    """Spoil the newest cut."""
    manifest = newest(run_dir)
    victim = run_dir / FOLDER / json.loads(manifest.read_bytes())["fragments"][1]["file"]
    if how == "short":
        victim.write_bytes(victim.read_bytes()[:-1])
    elif how == "flipped":
        data = victim.read_bytes()
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "missing":
        victim.unlink()
    elif how == "layout":
        next((run_dir / FOLDER).glob("layout-*")).write_text("{}")
    elif how == "foreign":
        manifest.write_text(json.dumps({"format": 99}))
    else:
        manifest.write_bytes(manifest.read_bytes()[:-9])


def test_cuts_and_layout_are_shown(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "show", str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run r-1"
    cuts = [line.split() for line in lines[3:5]]
    assert [(row[0], row[3], row[4:7], row[7]) for row in cuts] == [
        ("2", "1", ["3", "to", "3"], "100"),
        ("1", "1", ["2", "to", "2"], "100"),
    ]
    assert any(line.startswith("layout ") and "values, 8 tensors in 4 fragments" in line for line in lines)
    (head,) = [line.split() for line in lines if "head.weight" in line]
    assert head[1:] == ["head.weight", "float32", "11x6", "embedding", "wte.weight"]
    (scale,) = [line for line in lines if " scale " in line]
    assert "one number" in scale


def test_json_tells_the_same(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "show", str(run_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    cuts = [(cut["cut"], cut["whole"], cut["versions"]) for cut in found["cuts"]]
    assert cuts == [(2, True, [3] * 4), (1, True, [2] * 4)]
    size = sum(path.stat().st_size for path in (run_dir / FOLDER).iterdir())
    layout = next((run_dir / FOLDER).glob("layout-*")).stat().st_size
    assert sum(cut["bytes"] for cut in found["cuts"]) == size + layout  # which both cuts share
    assert len(found["layout"]["fragments"]) == 4
    assert found["layout"]["ties"] == [["head.weight", "wte.weight"]]


def test_what_is_whole_verifies_and_leftovers_are_told(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / FOLDER / "fragment-000-abc.safetensors.aside").write_bytes(b"half")
    assert run(["checkpoint", "verify", str(run_dir)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "cut 2: whole",
        "cut 1: whole",
        "no manifest names fragment-000-abc.safetensors.aside",
    ]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("short", "is damaged: its"),
        ("flipped", "is damaged: its"),
        ("missing", "which cannot be read: No such file or directory"),
        ("layout", "is damaged: its content has not the digest in its name"),
        ("foreign", "has format 99; this version of zdiloco reads 1"),
        ("truncated", "is damaged"),
    ],
)
def test_what_is_not_whole_is_named_and_never_exported(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, says: str
) -> None:
    """D-59: show and verify name it; export takes the older cut, or refuses where that cannot be right."""
    damage(run_dir, how)
    assert run(["checkpoint", "verify", str(run_dir)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cut 2: NOT WHOLE"
    assert any(says in line for line in lines[2:])
    assert run(["checkpoint", "show", str(run_dir)]) == 0
    assert ("by its sizes" in capsys.readouterr().out.splitlines()[3]) == (how == "flipped")
    out = tmp_path / "out.safetensors"
    code = run(["checkpoint", "export", str(run_dir), str(out)])
    said = capsys.readouterr()
    if how in ("foreign", "layout"):
        assert (code, out.exists()) == (2, False)
        assert says in said.err.splitlines()[-1]
    else:
        assert code == 0
        assert said.out.startswith("cut 1: ")
        assert run(["checkpoint", "export", str(run_dir), str(out), "--cut", "2", "--force"]) == 2
        assert says in capsys.readouterr().err.splitlines()[-1]


def test_every_fault_has_its_line(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [entry["file"] for entry in json.loads(newest(run_dir).read_bytes())["fragments"]]
    (run_dir / FOLDER / files[0]).unlink()
    (run_dir / FOLDER / files[2]).write_bytes(b"PK")
    assert run(["checkpoint", "verify", str(run_dir), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["whole"] == [1]
    assert [name in fault for name, fault in zip((files[0], files[2]), found["faults"], strict=True)] == [True, True]


def test_an_export_is_told(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    assert run(["checkpoint", "export", str(run_dir), str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "tied, under each name: head.weight = wte.weight",
        "each learner counts its own, left out: norm.num_batches_tracked",
        "frozen parameters, if there are any, are not in a checkpoint: --base adds them",
    ]
    assert "head.weight" in safetensors.torch.load_file(out)
    assert run(["checkpoint", "export", str(run_dir), str(out)]) == 2
    assert "exists: --force overwrites it" in capsys.readouterr().err


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody can write to; root needs a mount for that."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
    elif not mount_tmpfs(folder, "ro"):
        skip_unless_ci()
    yield folder
    unmount(folder)


def test_where_nothing_can_be_written_is_one_line(
    run_dir: Path, sealed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    below_a_file = newest(run_dir) / "out.safetensors"
    for out, why in ((sealed / "out.safetensors", "Read-only|Permission"), (below_a_file, "Not a directory")):
        assert run(["checkpoint", "export", str(run_dir), str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.fullmatch(f"zdiloco: cannot write {re.escape(str(out))}: ({why}).*", line), line
    assert not list(sealed.iterdir())


def test_nothing_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, says in ((tmp_path / "none", "there is no run folder"), (tmp_path, "holds no checkpoint")):
        for words in (["show"], ["verify"], ["export"]):
            out = [str(tmp_path / "out")] if words == ["export"] else []
            assert run(["checkpoint", *words, str(place), *out]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert says in line
