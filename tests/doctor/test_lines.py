"""Lines between doctors: what is said is read, and nothing else is."""

import pytest

from zdiloco.doctor.lines import MAX_LINE, MOST_BYTES, About, Ask, Clock, Took, line_of, read_line
from zdiloco.errors import MalformedFrame

ABOUT = About(doctor=1, road="bulk", version="0.1.0", protocol=5, libzmq="4.3.5", wall=1.5e9, send_bytes=4096)
RECORDS = (ABOUT, Ask(ask="take", nbytes=MOST_BYTES, seconds=3.0), Clock(wall=2.5), Took(nbytes=7, bytes_s=1e9))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_what_is_said_is_read(record: About | Ask | Clock | Took) -> None:
    line = line_of(record)
    assert line.count(b"\n") == 1
    assert len(line) < MAX_LINE
    assert read_line(type(record), line) == record


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"[]", b"{}", b"null", b'{"ask":"sing"}', b'{"ask":"take","nbytes":-1}', b'{"ask":"take","more":1}',
        b'{"ask":"take","nbytes":268435457}', b'{"ask":"give","seconds":31}', b'{"ask":"give","seconds":1e999}',
        b'{"ask":"clock","nbytes":1.5}', b'{"ask":"clock"} {"ask":"clock"}', b"\xff\x00\x00", b"[" * 1900,
        b'{"ask":"clock","nbytes":' + b"0" * MAX_LINE + b"}",
    ],
)  # fmt: skip
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        read_line(Ask, data)


def test_texts_are_short_and_printable() -> None:
    for version in ("x" * 65, "a\nb", "\x1b[2J", "ü"):
        with pytest.raises(MalformedFrame):
            read_line(
                About, line_of(About(**{**{f: getattr(ABOUT, f) for f in ABOUT.__struct_fields__}, "version": version}))
            )


def test_a_newer_doctor_may_tell_more() -> None:
    assert read_line(About, line_of(ABOUT).replace(b"{", b'{"colour":"red",', 1)) == ABOUT
