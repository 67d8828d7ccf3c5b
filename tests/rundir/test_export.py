"""Exported files: plain torch loads them strictly, another library as its own model; what is in the way is refused."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from zdiloco.errors import ConfigError, MachineError, StoreError
from zdiloco.rundir.archive import Cut, FragmentCut
from zdiloco.rundir.export import Wanted, export
from zdiloco.rundir.store import Store
from zdiloco.rundir.tensorfile import Kind, TensorFile
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.layout import layout_of
from zdiloco.units import Epoch, Merged, Stamp


class Tied(nn.Module):
    """A head tied to an embedding, a normalisation, a frozen layer, a number of no dimension, three dtypes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.wte = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.mix = nn.Linear(6, 6).to(torch.bfloat16)
        self.frozen = nn.Linear(6, 3)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.wte.weight
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.frozen.requires_grad_(False)


def cut_of(model: nn.Module, version: int = 3, fragments: int = 3) -> Cut:
    """A checkpoint that holds exactly these values."""
    layout = layout_of(model, num_fragments=fragments)
    binding = Binding(model, layout)
    thetas = [binding.gather(fragment.index) for fragment in layout.fragments]
    parts = tuple(
        FragmentCut(
            fragment=index,
            revision=version,
            stamp=Stamp(Epoch(1, 5), version),
            theta=theta,
            buf=None,
            value=get_codec("fp32").encode(theta),
            codec="fp32",
            map_=(Merged("a", 7, 1, 10, 100),),
        )
        for index, theta in enumerate(thetas)
    )
    table = layout.to_obj()
    return Cut(run_id="r-1", epoch=Epoch(1, 5), layout_digest=layout.digest, layout=table, fragments=parts)


def saved(run_dir: Path, *cuts: Cut) -> Path:
    store = Store(run_dir, keep=2)
    store.load()
    for cut in cuts:
        store.write(cut)
    store.close()
    return run_dir


@pytest.fixture
def model() -> Tied:
    return Tied(1)


@pytest.fixture
def run_dir(tmp_path: Path, model: Tied) -> Path:
    return saved(tmp_path / "run", cut_of(Tied(5), version=2), cut_of(model))


@pytest.fixture
def base(tmp_path: Path, model: Tied) -> Path:
    """The whole model in one file, as its owner would save it before the run."""
    path = tmp_path / "base.safetensors"
    safetensors.torch.save_model(model, str(path))
    return path


def test_plain_torch_loads_it_strictly(run_dir: Path, base: Path, tmp_path: Path, model: Tied) -> None:
    """With the frozen layer from a base file, every name that the model wants is there, tied ones too, bit for bit."""
    done = export(run_dir, tmp_path / "out.safetensors", Wanted(base=base))
    again = Tied(9)
    assert again.load_state_dict(safetensors.torch.load_file(done.path), strict=True) == ([], [])
    assert again.head.weight is again.wte.weight
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
        assert again.state_dict()[name].dtype is value.dtype
    assert (done.number, done.ties) == (2, (("head.weight", "wte.weight"),))
    assert done.from_base == ("frozen.bias", "frozen.weight", "norm.num_batches_tracked")
    assert done.local == ()
    assert len(os.listdir(tmp_path)) == 3  # nothing lies aside


def test_without_a_base_what_stays_is_told(run_dir: Path, tmp_path: Path) -> None:
    done = export(run_dir, tmp_path / "out.safetensors", Wanted())
    assert done.local == ("norm.num_batches_tracked",)
    missing, unexpected = Tied(9).load_state_dict(safetensors.torch.load_file(done.path), strict=False)
    assert (missing, unexpected) == (["frozen.weight", "frozen.bias"], [])


def test_a_model_without_frozen_layers_needs_no_base(tmp_path: Path) -> None:
    """Statistics travel; a counter that is missing is no fault to plain torch."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model(torch.randn(8, 4))
    done = export(saved(tmp_path / "run", cut_of(model)), tmp_path / "out.safetensors", Wanted())
    again = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    assert again.load_state_dict(safetensors.torch.load_file(done.path), strict=True) == ([], [])
    x = torch.randn(5, 4)
    assert torch.equal(model.eval()(x), again.eval()(x))


def test_metadata_says_what_it_is(run_dir: Path, tmp_path: Path) -> None:
    done = export(run_dir, tmp_path / "out.safetensors", Wanted())
    with safetensors.safe_open(done.path, framework="pt") as file:
        told = file.metadata()
    assert (told["format"], told["zdiloco.run_id"], told["zdiloco.cut"]) == ("pt", "r-1", "2")
    assert json.loads(told["zdiloco.versions"]) == [3, 3, 3, 3]
    assert json.loads(told["zdiloco.ties"]) == [["head.weight", "wte.weight"]]


@pytest.mark.parametrize(("wanted", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_parameters_in_one_type_and_buffers_in_theirs(
    run_dir: Path, tmp_path: Path, model: Tied, wanted: str, dtype: torch.dtype
) -> None:
    done = export(run_dir, tmp_path / "out.safetensors", Wanted(dtype=wanted))
    found = safetensors.torch.load_file(done.path)
    assert {found[name].dtype for name in ("wte.weight", "head.weight", "mix.weight", "scale")} == {dtype}
    assert found["norm.running_mean"].dtype is torch.float32
    assert torch.equal(found["wte.weight"], model.wte.weight.detach().to(dtype))


def test_a_cut_is_taken_by_its_number(run_dir: Path, tmp_path: Path) -> None:
    done = export(run_dir, tmp_path / "out.safetensors", Wanted(number=1))
    assert torch.equal(safetensors.torch.load_file(done.path)["wte.weight"], Tied(5).wte.weight.detach())
    with pytest.raises(ConfigError, match=r"holds no cut 7; it holds 1, 2"):
        export(run_dir, tmp_path / "other.safetensors", Wanted(number=7))


def test_what_is_there_is_not_overwritten_unasked(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    out.write_text("mine")
    with pytest.raises(ConfigError, match=r"out.safetensors exists: --force overwrites it"):
        export(run_dir, out, Wanted())
    assert out.read_text() == "mine"
    export(run_dir, out, Wanted(force=True))
    assert safetensors.torch.load_file(out)
    with pytest.raises(ConfigError, match="is a folder"):
        export(run_dir, tmp_path, Wanted(force=True))
    with pytest.raises(ConfigError, match="No such file or directory"):
        export(run_dir, tmp_path / "none" / "out.safetensors", Wanted())
    with pytest.raises(ConfigError, match="File name too long"):
        export(run_dir, tmp_path / ("x" * 300), Wanted())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe is no regular file"):
        export(run_dir, tmp_path / "pipe", Wanted(force=True))


def test_the_checkpoint_folder_is_no_place_for_it(run_dir: Path, tmp_path: Path) -> None:
    """A syncer removes what no manifest names; and a file of the checkpoint itself is not to be overwritten."""
    folder = run_dir / "checkpoints"
    (tmp_path / "link").symlink_to(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    part = next(folder.glob("fragment-*"))
    for out in (folder / "out.safetensors", part, tmp_path / "link" / "out.safetensors"):
        with pytest.raises(ConfigError, match="checkpoint folder of the run"):
            export(run_dir, out, Wanted(force=True))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_damaged_newest_cut_gives_way_and_a_damaged_one_that_is_asked_for_does_not(
    run_dir: Path, tmp_path: Path
) -> None:
    """D-59: the older one is exported, with a warning; nothing is ever exported of a cut that is not whole."""
    manifest = json.loads(max((run_dir / "checkpoints").glob("manifest-*")).read_bytes())
    victim = run_dir / "checkpoints" / manifest["fragments"][1]["file"]
    data = victim.read_bytes()
    victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert export(run_dir, tmp_path / "out.safetensors", Wanted()).number == 1
    with pytest.raises(ConfigError, match=r"no checkpoint is whole: .* is damaged"):
        export(run_dir, tmp_path / "second.safetensors", Wanted(number=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors", "run"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("another model", r"is of another model: 'wte.weight' is \[12, 6\] there, \[11, 6\] here"),
        ("no file", "cannot be read as a safetensors file"),
        ("foreign", "cannot be read as a safetensors file"),
    ],
)
def test_a_base_that_is_none_is_refused(run_dir: Path, tmp_path: Path, how: str, says: str) -> None:
    base = tmp_path / "base.safetensors"
    if how == "another model":
        safetensors.torch.save_file({"wte.weight": torch.zeros(12, 6)}, base)
    elif how == "foreign":
        base.write_bytes(b"PK\x03\x04 a pickle in a zip")
    with pytest.raises(ConfigError, match=says):
        export(run_dir, tmp_path / "out.safetensors", Wanted(base=base))


def test_a_full_disk_leaves_what_was_there(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.safetensors"
    out.write_text("mine")
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StoreError, match="No space left on device"):
        export(run_dir, out, Wanted(force=True))
    monkeypatch.setattr(os, "fsync", real)
    assert out.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors", "run"]


@pytest.mark.parametrize("values", [2, 10**5])
@pytest.mark.parametrize("name", ["a", "a" * 10**5])
def test_a_disk_without_room_is_said_once(tmp_path: Path, values: int, name: str) -> None:
    """Whether it is the head that finds no room, a tensor, or what is still in the buffer when the file is closed."""
    (tmp_path / "x.aside").symlink_to("/dev/full")
    kinds = {name: Kind(torch.float32, (values,)), "b": Kind(torch.float32, ())}

    def write() -> None:
        with TensorFile(tmp_path / "x", kinds, {}) as file:
            file.put(name, torch.zeros(values))
            file.put("b", torch.zeros(()))

    with pytest.raises(StoreError, match="No space left on device"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_what_the_library_reads(tmp_path: Path) -> None:
    """Odd sizes, empty tensors, numbers of no dimension and every type, filled in any order."""
    values: dict[str, Any] = {
        "bool": torch.tensor([True, False, True]), "half": torch.randn(3).half(), "none": torch.zeros(0, 4),
        "one": torch.tensor(7), "long name " * 20: torch.randn(5, 2).double(), "u8": torch.arange(5, dtype=torch.uint8),
        "turned": torch.randn(4, 3).t(),
    }  # fmt: skip
    kinds = {name: Kind(value.dtype, tuple(value.shape)) for name, value in values.items()}
    with TensorFile(tmp_path / "x", kinds, {"a": "b"}) as file:
        for name in reversed(list(values)):
            file.put(name, values[name])
    found = safetensors.torch.load_file(tmp_path / "x")
    assert found.keys() == values.keys()
    assert all(torch.equal(found[name], value) for name, value in values.items())
    assert (tmp_path / "x").stat().st_size == file.nbytes


def test_a_file_that_was_not_filled_is_not_there(tmp_path: Path) -> None:
    kinds = {"a": Kind(torch.float32, (2,)), "b": Kind(torch.float32, ())}
    with pytest.raises(MachineError, match="1 tensors of"), TensorFile(tmp_path / "x", kinds, {}) as file:
        file.put("a", torch.zeros(2))
    assert list(tmp_path.iterdir()) == []
