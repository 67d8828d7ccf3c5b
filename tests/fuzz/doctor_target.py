"""What a doctor on the other side says, and what whoever connects to one may ask: any bytes, as a line."""

import msgspec

from tests.fuzz.target import Tape, Target
from zdiloco.doctor.lines import MAX_LINE, About, Ask, Clock, Took, line_of, read_line
from zdiloco.doctor.living import about_of
from zdiloco.errors import MalformedFrame
from zdiloco.node.about import about

ABOUT = About(doctor=1, road="bulk", version="0.1.0", protocol=5, libzmq="4.3.5", wall=1.5e9, congestion="bbr")
RECORDS = (ABOUT, Ask(ask="take", nbytes=2**20, seconds=3.0), Clock(wall=2.5), Took(nbytes=7, bytes_s=1e9))


def _seeds() -> list[bytes]:
    return [bytes([at]) + line_of(record) for at, record in enumerate(RECORDS)]


def parse_line(data: bytes) -> None:
    """The first byte picks the kind: what is taken comes back from its own line, and that is as short as any."""
    record = read_line(type(RECORDS[(data or b"\0")[0] % len(RECORDS)]), data[1:])
    line = line_of(record)
    assert len(line) <= MAX_LINE
    assert read_line(type(record), line) == record


def parse_fields(data: bytes) -> None:
    """A line of some kind in which some fields were put in, taken away or replaced."""
    tape = Tape(data)
    record = RECORDS[tape.pick(len(RECORDS))]
    fields = msgspec.to_builtins(record)
    for _ in range(tape.pick(4)):
        name = sorted(fields)[tape.pick(len(fields))] if fields else tape.text()
        fields[name if tape.pick(3) else tape.text()] = tape.value()
        if tape.pick(5) == 4:
            fields.pop(name, None)
    try:
        line = msgspec.json.encode(fields)
    except (ValueError, OverflowError, RecursionError):  # such a value no peer can send
        return
    parse_line(bytes([RECORDS.index(record)]) + line)


def parse_about(data: bytes) -> None:
    """Any value where a status tells about its process: what is taken is of its type, and bounded."""
    tape = Tape(data)
    told = {**about(), **{key: tape.value() for key in ("version", "protocol", "libzmq", "wall") if tape.pick(2)}}
    found = about_of({"node": {"about": told}} if tape.pick(2) else {"node": tape.value(), "about": told})
    assert found.wall is None or 0 <= found.wall <= 1e12
    assert found.versions is None or len(found.versions.version + found.versions.libzmq) <= 128


TARGETS = (
    Target(name="doctor_line", parse=parse_line, allowed=(MalformedFrame,), seeds=_seeds),
    Target(name="doctor_fields", parse=parse_fields, allowed=(MalformedFrame,), seeds=lambda: [b"", b"\1", b"\3"]),
    Target(name="doctor_about", parse=parse_about, allowed=(), seeds=lambda: [b"", b"\1\0\2"]),
)
