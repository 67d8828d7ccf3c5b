"""The picture is a PNG that shows every learner, also where there is next to nothing to show."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from zdiloco.demo import picture
from zdiloco.demo.checks import Lone
from zdiloco.demo.learner_log import Notes
from zdiloco.errors import StoreError

PNG = b"\x89PNG\r\n\x1a\n"


def notes_of(name: str, start: float, lines: int) -> Notes:
    loss = [(start + at, at / 100, 5.0 / (1 + at)) for at in range(lines)]
    return Notes(name=name, incarnation=name * 16, joined_at=start, wall_offset=0.0, ended_at=start + lines, loss=loss)


def scene(notes: list[Notes], rounds: list[dict[str, object]], killed_at: float = 20.0) -> picture.Scene:
    return picture.Scene(
        names=("a", "b", "c"),
        notes=notes,
        rounds=rounds,
        training_at=10.0,
        killed_at=killed_at,
        returned_at=killed_at and killed_at + 5,
        ended_at=40.0,
        victim="b",
        loss_after=1.5,
        lone=Lone(steps=1000, loss=1.6, noise=0.01),
    )


def chunks(data: bytes) -> list[bytes]:
    """The kinds of all chunks of a PNG; each has a checksum that must be right."""
    assert data.startswith(PNG)
    kinds, at = [], len(PNG)
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        body = data[at + 4 : at + 8 + length]
        assert zlib.crc32(body) == struct.unpack_from(">I", data, at + 8 + length)[0]
        kinds.append(body[:4])
        at += 12 + length
    return kinds


def test_a_whole_demo_is_drawn(tmp_path: Path) -> None:
    rounds = [
        {"t": 10.0 + at, "members": [[name, name * 16, 3, 100 + at] for name in ("a", "b", "c")[: 1 + at % 3]]}
        for at in range(30)
    ]
    notes = [notes_of("a", 10, 30), notes_of("b", 10, 10), notes_of("b", 26, 14), notes_of("c", 10, 30)]
    kinds = chunks(picture.draw(scene(notes, rounds), tmp_path / "demo.png").read_bytes())
    assert kinds[0] == b"IHDR"
    assert kinds[-1] == b"IEND"


def test_an_empty_story_is_drawn(tmp_path: Path) -> None:
    data = picture.draw(scene([notes_of("a", 10, 0)], [], killed_at=0.0), tmp_path / "demo.png").read_bytes()
    assert chunks(data)[-1] == b"IEND"


def test_without_a_yardstick_the_rest_is_drawn(tmp_path: Path) -> None:
    bare = replace(scene([notes_of("a", 10, 5)], []), lone=None)
    assert chunks(picture.draw(bare, tmp_path / "demo.png").read_bytes())[-1] == b"IEND"


def test_a_place_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write the picture"):
        picture.draw(scene([], []), tmp_path / "nowhere" / "demo.png")


def test_smoothing_starts_at_the_first_value_and_follows() -> None:
    assert picture.smooth([]) == []
    assert picture.smooth([4.0, 4.0]) == [4.0, 4.0]
    assert picture.smooth([0.0, 1.0, 1.0], weight=0.5) == [0.0, 0.5, 0.75]
