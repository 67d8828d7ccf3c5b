"""Saved states of a learner: whole or not at all, the one before for a damaged one, and everything foreign refused."""

import errno
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from tests.rundir.test_store import FailingDisk
from zdiloco.errors import StoreError
from zdiloco.rundir import saved as files
from zdiloco.rundir.disk import Disk
from zdiloco.rundir.saved import FORMAT, INNER, KEPT, About, ForeignState, Saved, SavedStates
from zdiloco.rundir.tree import pack


def about(step: int, **changes: Any) -> About:
    own = {"name": "a", "run_name": "r", "run_id": "r-1", "optimizer": "torch.AdamW", "parameters": (("w", (2, 3)),)}
    return About(**{**own, "step": step, **changes})


def write(states: SavedStates, step: int, value: float | None = None, **changes: Any) -> Path | None:
    """Save a state whose every number is its step."""
    tensors: dict[str, Tensor] = {}
    inner = {"state": {0: {"exp_avg": torch.full((2, 3), step if value is None else value)}}, "param_groups": [step]}
    parts = {INNER: pack(inner, INNER, tensors), "data": pack({"at": step}, "data", tensors)}
    return states.write(about(step, **changes), parts, tensors)


def step_of(saved: Saved | None) -> int:
    """The step of a state that is whole; 0: there is none."""
    if saved is None:
        return 0
    step = saved.about.step
    assert saved.about == about(step)
    assert saved.parts["data"] == {"at": step}
    assert torch.equal(saved.parts[INNER]["state"][0]["exp_avg"], torch.full((2, 3), float(step)))
    return step


def test_the_newest_comes_back_and_two_are_kept(tmp_path: Path) -> None:
    states = SavedStates(tmp_path, "a")
    assert states.read() is None
    for step in range(1, 6):
        assert write(states, step)
        assert step_of(SavedStates(tmp_path, "a").read()) == step
    assert len(list((tmp_path / "learners").iterdir())) == KEPT


def test_odd_keys_and_odd_views_come_back(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {}
    conj = torch.tensor([1 + 2j]).conj()
    odd = {"half a pair \udc80": torch.ones(2), "conj": conj, "neg": torch._neg_view(torch.ones(3))}
    states = SavedStates(tmp_path, "a")
    states.write(about(1), {INNER: pack({}, INNER, tensors), "data": pack(odd, "data", tensors)}, tensors)
    found = states.read()
    assert found
    assert found.parts["data"].keys() == odd.keys()
    assert all(torch.equal(found.parts["data"][name], value) for name, value in odd.items())


def test_a_file_is_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    path = write(SavedStates(tmp_path, "a"), 3)
    assert path
    assert [*safetensors.torch.load_file(path)] == ["optimizer.state.0.exp_avg"]
    with safetensors.safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["about"])["step"] == 3


def test_what_nobody_could_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads a head of so many bytes and no longer one; lists and text stand in it."""
    for excess, says in ((0, "invalid header length"), (1, "header too large")):
        with pytest.raises(safetensors.SafetensorError, match=says):
            safetensors.torch.load((files.MOST_HEAD + excess).to_bytes(8, "little") + b" " * 8)
    states = SavedStates(tmp_path, "a")
    good = write(states, 1)
    monkeypatch.setattr(files, "MOST_HEAD", 100)
    with pytest.raises(StoreError, match="hand long lists in as tensors or arrays"):
        write(states, 2)
    assert list((tmp_path / "learners").iterdir()) == [good]


def test_learners_whose_names_begin_alike_do_not_meet(tmp_path: Path) -> None:
    for at, name in enumerate(("a", "a-000000001", "a.b", "ab")):
        write(SavedStates(tmp_path, name), 10 + at, name=name)
    for at, name in enumerate(("a", "a-000000001", "a.b", "ab")):
        found = SavedStates(tmp_path, name).read()
        assert found
        assert (found.about.name, found.about.step) == (name, 10 + at)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_any_call_leaves_a_whole_state(tmp_path: Path, number: int) -> None:
    write(SavedStates(tmp_path / "count", "a", disk := FailingDisk(10**6)), 1)
    total = len(disk.calls)
    assert total >= 6
    for at in range(total + 3):  # with a third one to remove
        folder = tmp_path / str(at)
        for step in (1, 2):
            write(SavedStates(folder, "a"), step)
        said = ""
        try:
            write(SavedStates(folder, "a", disk := FailingDisk(at, number)), 3)
        except StoreError as error:
            said = str(error)
        assert not said or os.strerror(number) in said
        moved = "move" in disk.calls[:at]
        assert step_of(SavedStates(folder, "a").read()) == (3 if moved else 2), (at, disk.calls)
        assert step_of(SavedStates(folder, "a").read()) >= (0 if said else 3)
        write(SavedStates(folder, "a"), 4)  # and the next one works
        assert step_of(SavedStates(folder, "a").read()) == 4
        assert not list(folder.rglob("*.saving"))


class Killed(BaseException):
    """The process is gone: nothing of it goes on."""


class DyingDisk(FailingDisk):
    """A disk whose user is killed at the n-th call, in the middle of it where it writes."""

    def _count(self, name: str) -> None:
        try:
            super()._count(name)
        except OSError as error:
            raise Killed from error


def test_a_kill_at_any_call_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    found = []
    for at in range(9):
        folder = tmp_path / str(at)
        write(SavedStates(folder, "a"), 1)
        with suppress(Killed):
            write(SavedStates(folder, "a", DyingDisk(at)), 2)
        found.append(step_of(SavedStates(folder, "a").read()))
        write(SavedStates(folder, "a"), 3)
        assert step_of(SavedStates(folder, "a").read()) == 3
        assert not list(folder.rglob("*.saving"))
    assert found == sorted(found)
    assert set(found) == {1, 2}


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    made = {
        "truncated": data[: len(data) // 2], "empty": b"", "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "zeros": bytes(len(data)), "foreign": b"PK\3\4" + data[4:],
    }  # fmt: skip
    path.write_bytes(made[how])


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped", "zeros", "foreign"])
def test_a_damaged_newest_gives_way_to_the_one_before(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """User case D-59, the learner's side: missing, truncated, foreign and other-version files are each told apart."""
    states = SavedStates(tmp_path, "a")
    write(states, 1)
    write(states, 2)
    damage(states.files()[0], how)
    assert step_of(states.read()) == 1
    assert "passed over" in caplog.text
    assert "is damaged" in caplog.text
    damage(states.files()[1], how)
    with pytest.raises(StoreError, match=r"is damaged.*is damaged"):
        states.read()


def test_a_pipe_and_what_no_memory_holds_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """F-6."""
    states = SavedStates(tmp_path, "a")
    write(states, 1)
    os.mkfifo(states._folder / f"a-000000003-{'0' * 32}.safetensors")
    huge = states._folder / f"a-000000002-{'0' * 32}.safetensors"
    huge.touch()
    os.truncate(huge, 2**42)
    assert step_of(states.read()) == 1
    assert "larger than the memory" in caplog.text


def renamed(states: SavedStates, head: dict[str, str], tensors: dict[str, Tensor]) -> None:
    """Put a file with this head in place, whose digest is right."""
    data = safetensors.torch.save(tensors, metadata=head)
    for path in states.files():
        path.unlink()
    name = f"a-000000001-{xxhash.xxh3_128_hexdigest(data)}.safetensors"
    (states._folder / name).write_bytes(data)


def test_what_is_not_ours_is_refused_with_the_reason(tmp_path: Path) -> None:
    """F-6: User case D-59."""
    states = SavedStates(tmp_path, "a")
    path = write(states, 1, name="b")
    with pytest.raises(ForeignState, match="is the state of learner 'b', not of 'a'"):
        states.read()
    assert path
    with safetensors.safe_open(path, framework="pt") as file:
        head = dict(file.metadata())
    head["about"] = head["about"].replace('"name":"b"', '"name":"a"')
    tensors = safetensors.torch.load_file(path)
    renamed(states, {**head, "format": "zdiloco-learner-0"}, tensors)
    with pytest.raises(ForeignState, match=f"is of format 'zdiloco-learner-0'; this version reads {FORMAT!r}"):
        states.read()
    wrong = [
        ({}, tensors), ({"format": FORMAT}, tensors), ({**head, "parts": "{"}, tensors),
        ({**head, "parts": "[]"}, tensors), ({**head, "about": "{}"}, tensors), (head, {}),
        ({**head, "about": head["about"].replace('"step":1', '"step":-1')}, tensors),
    ]  # fmt: skip
    for each, values in wrong:
        renamed(states, each, values)
        with pytest.raises(StoreError, match="holds no"):
            states.read()


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    states = SavedStates(tmp_path, "a")
    write(states, 1)
    write(states, 2, float("nan"))
    found = states.read()
    assert found
    assert (found.about.step, found.parts["data"], found.parts[INNER]["param_groups"]) == (2, {"at": 2}, [1])
    assert "not finite" in caplog.text
    write(states, 3, float("inf"))
    found = states.read()
    assert found
    assert found.parts == {"data": {"at": 3}}


def test_what_is_written_can_be_called_off(tmp_path: Path) -> None:
    states = SavedStates(tmp_path, "a")
    write(states, 1)
    asked: list[int] = []
    tensors = {"x": torch.zeros(10**6)}

    def after_three() -> bool:
        asked.append(0)
        return len(asked) > 3

    assert states.write(about(2), {}, tensors, unless=after_three) is None
    assert step_of(states.read()) == 1
    assert not list(tmp_path.rglob("*.saving"))


def test_what_cannot_be_removed_is_said_and_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Holding(Disk):
        def remove(self, path: Path) -> None:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    caplog.set_level(logging.WARNING)
    for step in (1, 2, 3):
        write(SavedStates(tmp_path, "a", Holding()), step)
    assert "stays for now" in caplog.text
    assert step_of(SavedStates(tmp_path, "a").read()) == 3
