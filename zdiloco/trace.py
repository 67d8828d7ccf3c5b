"""What happened in a run, real or simulated, as records: one JSON object a line, each kind with its own fields.

Rule: a record says what happened at `t` (seconds of one monotonic clock, or virtual ones) and to whom; it decides
nothing, and nothing but reports depends on it. Fields that a reader does not know are passed over, a line that is wrong
is named with its file and number. Half a line, which a kill or a full disk leaves, is normal.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from zdiloco.errors import ConfigError

FILE = "journal.jsonl"
"""The trace of a real run, in its run folder; the syncer writes it."""
SYNCER = "syncer"
"""`who` of what the syncer does."""
MAX_LINE_BYTES = 2**22
"""Longer than any round of as many members as a syncer takes."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Fragment = Annotated[int, Meta(ge=0, lt=512)]
Moment = Annotated[float, Meta(ge=-1e12, le=1e12)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(max_length=64)]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """What every record holds. `who`: a learner's name, or SYNCER."""

    t: Moment
    who: Name = SYNCER


class Start(Record, frozen=True, kw_only=True, tag="start"):
    """A syncer process, or a simulated run, begins. `wall`: seconds since 1970 at `t`; `sync`: the [sync] settings."""

    wall: Moment | None = None
    run_id: str = ""
    target_tokens: Count = 0
    sync: dict[str, bool | int | float | str] | None = None


class Opened(Record, frozen=True, kw_only=True, tag="opened"):
    """An epoch begins. Per fragment: `shares` of the parameters (sum 1), `numels`, how many values it has, and
    `versions`, what the epoch begins with."""

    epoch: Count = 0
    shares: tuple[Share, ...] = ()
    numels: tuple[Count, ...] = ()
    versions: tuple[Count, ...] = ()


class Phase(Record, frozen=True, kw_only=True, tag="phase"):
    """A phase of a syncer's return has ended, so many `seconds` after its process began its work."""

    what: str = ""
    seconds: Seconds = 0.0


class Joined(Record, frozen=True, kw_only=True, tag="joined"):
    """The syncer welcomes a process: it loads the published values, and has made no step yet; or, after a silence, one
    that it knew. `region`: where that process says it is; empty: it does not.
    """

    incarnation: Name = ""
    region: Name = ""


class Member(Record, frozen=True, kw_only=True, tag="member"):
    """What a learner is to the syncer has changed. `state`: a word of `core.membership.MemberState`.

    `silent_s`: how long it had not been heard; `step` and `trained`: inner steps and tokens, where it said so.
    """

    state: str
    incarnation: Name = ""
    why: str = ""
    silent_s: Seconds = 0.0
    step: Count | None = None
    trained: Count | None = None


class Step(Record, frozen=True, kw_only=True, tag="step"):
    """A learner is at a step boundary: inner steps and tokens that its process has made so far.

    Where `step` is missing it is one more than before; where `trained` is, it is `tokens` more. Not every boundary is
    told: between two, the pace is even.
    """

    step: Count | None = None
    trained: Count | None = None
    tokens: Count | None = None


class Call(Record, frozen=True, kw_only=True, tag="call"):
    """A round opens, and why; it is to make `version` of the fragment."""

    fragment: Fragment
    version: Count
    epoch: Count = 0
    why: str = ""


class Arrived(Record, frozen=True, kw_only=True, tag="arrived"):
    """A contribution of `who` is here and sound: it is held.

    `version`: the round that it answers; `base`: the version that it was cut on; `cut_step`: its inner step then;
    `offer_s` and `answer_s`: from that round's call to its offer, and until it is here; missing where nobody knows any
    more when the call was.
    """

    fragment: Fragment
    version: Count
    seq: Count = 0
    after: Count = 0
    base: Count = 0
    steps: Count = 0
    tokens: Count = 0
    nbytes: Count = 0
    cut_step: Count | None = None
    offer_s: Seconds | None = None
    answer_s: Seconds | None = None


class Declined(Record, frozen=True, kw_only=True, tag="declined"):
    """A learner says that it cannot answer this call now."""

    fragment: Fragment
    version: Count
    reason: str = ""


class Part(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One contribution in a merge, an array in JSON. `staleness`: in versions; -1: not known."""

    name: Name
    incarnation: Name = ""
    steps: Count = 0
    tokens: Count = 0
    seq: Count = 0
    staleness: Annotated[int, Meta(ge=-1)] = -1


class Merge(Record, frozen=True, kw_only=True, tag="merge", omit_defaults=False):
    """A round closes at `t`, and why; `quorum_s`: from its call to the quorum; `grace_s`: from then to its close."""

    fragment: Fragment
    version: Count
    epoch: Count = 0
    members: tuple[Part, ...] = ()
    tokens: Count = 0
    why: str = ""
    quorum_s: Seconds | None = None
    grace_s: Seconds | None = None

    @property
    def called_at(self) -> float:
        """When the round was called."""
        return self.t - (self.quorum_s or 0.0) - (self.grace_s or 0.0)


class Published(Record, frozen=True, kw_only=True, tag="published"):
    """The outer step of a round is made and goes out, `sync_s` after its close."""

    fragment: Fragment
    version: Count
    sync_s: Seconds = 0.0


class Adopted(Record, frozen=True, kw_only=True, tag="adopted"):
    """A learner has taken this version into its own values. Only simulated runs know."""

    fragment: Fragment
    version: Count


class Adapted(Record, frozen=True, kw_only=True, tag="adapted"):
    """`sync.adaptive`: from here on fragments are called every `sync_period` steps, rounds wait for `min_quorum`, and
    grace windows have at least `grace_share` of the slack."""

    sync_period: Count = 0
    min_quorum: Count = 0
    grace_share: Share = 0.0
    why: str = ""


class Fault(Record, frozen=True, kw_only=True, tag="fault"):
    """Something is done to a simulated run; `what` says what."""

    what: str = ""


class Killed(Record, frozen=True, kw_only=True, tag="killed"):
    """This process dies at once. Of a real run only `member` records tell, some seconds later."""


class Stopped(Record, frozen=True, kw_only=True, tag="stopped"):
    """This process stands still, and says nothing."""


class Continued(Record, frozen=True, kw_only=True, tag="continued"):
    """A process that stood still goes on."""


class Returned(Record, frozen=True, kw_only=True, tag="returned"):
    """A process of this name is started again."""


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """A simulated learner holds the published values of every fragment: from now on it makes steps."""


class Reborn(Record, frozen=True, kw_only=True, tag="reborn"):
    """A simulated learner starts over as a new process, from the published values."""

    incarnation: Name = ""


class Stop(Record, frozen=True, kw_only=True, tag="stop"):
    """A simulated process ends by its own decision. `code`: its exit code."""

    code: int = 0
    why: str = ""


class Event(Record, frozen=True, kw_only=True, tag="event"):
    """A machine was told something, asked for `actions`, and said why; only simulated runs that are asked for it."""

    event: str = ""
    actions: tuple[str, ...] = ()
    why: tuple[str, ...] = ()


class Ending(Record, frozen=True, kw_only=True, tag="ending"):
    """The syncer calls nothing any more: the target is reached, or it is to leave."""

    phase: str = ""


class Sealed(Record, frozen=True, kw_only=True, tag="sealed"):
    """The last version of each fragment: Theta itself, into which nothing more is merged than into the one before."""

    epoch: Count = 0
    versions: tuple[Count, ...] = ()


class End(Record, frozen=True, kw_only=True, tag="end", omit_defaults=False):
    """The last record of a process: why it ends, how many lines before were lost, how its node stood."""

    reason: str = ""
    lost_lines: Count = 0
    node: dict[str, Any] | None = None


Line = (
    Start | Phase | Opened | Joined | Member | Step | Call | Arrived | Declined | Merge | Published | Adopted | Adapted
    | Fault | Killed | Stopped | Continued | Returned | Ready | Reborn | Stop | Event | Ending | Sealed | End
)  # fmt: skip
"""Every kind of record."""
KINDS: tuple[str, ...] = tuple(str(kind.__struct_config__.tag) for kind in Line.__args__)

_DECODER = msgspec.json.Decoder(Line)
_ENCODER = msgspec.json.Encoder()


def line_of(record: Record) -> bytes:
    """The record as one line of JSON, its end of line with it."""
    return _ENCODER.encode(record) + b"\n"


def facts_of(record: Record) -> dict[str, Any]:
    """The record as plain values, for JSON."""
    facts: dict[str, Any] = msgspec.to_builtins(record)
    return facts


def record_of(facts: Mapping[str, Any]) -> Line:
    """The record that these plain facts are. Raises ConfigError where they are none."""
    try:
        found: Line = msgspec.convert(dict(facts), Line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{dict(facts)!r:.200} is no record of a trace: {_told(error)}") from error
    return found


def write_trace(path: Path, records: Iterable[Record]) -> None:
    """Write a whole trace. Raises ConfigError where the disk does not let us."""
    try:
        with path.open("wb") as file:
            file.writelines(line_of(record) for record in records)
    except OSError as error:
        raise ConfigError(f"cannot write the trace {path}: {error.strerror}") from error


def trace_path(place: Path) -> Path:
    """The file of the trace at `place`: itself, or the journal of this run folder. Raises ConfigError where none is."""
    if not place.exists():
        raise ConfigError(f"there is no {place}: give a run folder, or the file of a trace")
    if not place.is_dir():
        return place
    if not (place / FILE).is_file():
        raise ConfigError(f"{place} holds no {FILE}: it is no run folder, or its syncer has never run")
    return place / FILE


def read_trace(place: Path) -> list[Line]:
    """All records of a run folder or of a file, in their order.

    Raises ConfigError where there are none, or a line is wrong: with the file, the line's number and what is wrong.
    """
    path = trace_path(place)
    try:
        with path.open("rb") as file:
            records = list(_records(path, file))
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror}") from error
    if not records:
        raise ConfigError(f"the trace {path} is empty: nothing has happened in it")
    return records


def _records(path: Path, file: BinaryIO) -> Iterator[Line]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if not line.strip():
            continue
        try:
            yield _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            if number > 1 and _is_torn(line, error):
                continue
            raise ConfigError(f"{path} line {number} is no record of a trace: {_told(error)}") from error


def _is_torn(line: bytes, error: Exception) -> bool:
    """Whether it is the beginning of a record and no more."""
    half = not line.rstrip().endswith(b"}") or "truncated" in str(error)
    whole_json = isinstance(error, msgspec.ValidationError)
    return line.startswith(b'{"') and half and not whole_json and len(line) < MAX_LINE_BYTES


def _told(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "`$.kind`" in text:
        text += f"; known kinds are {', '.join(KINDS)}"
    return text
