"""Pictures: matplotlib is missing, the name is no picture's, the disk refuses."""

from pathlib import Path

import pytest

from zdiloco import plots
from zdiloco.errors import ConfigError, StoreError


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'zdiloco\[plots\]'"):
        plots.require()
    with pytest.raises(ConfigError, match="pip install"):
        plots.check_name(Path("a.png"))


def test_a_name_says_which_kind_of_picture_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.gif must be called \*\.png, \*\.pdf, \*\.svg"):
        plots.check_name(Path("a.gif"))
    for name, head in (("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml")):
        with plots.figure(1, 1) as made:
            plots.save(made, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(head)


def test_a_place_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with plots.figure(1, 1) as made, pytest.raises(StoreError, match="cannot write the picture"):
        plots.save(made, tmp_path / "nowhere" / "a.png")
