"""Records as lines and back; what is torn is passed over, what is wrong is named with file and line."""

import io
import json
from pathlib import Path

import pytest

from zdiloco import trace
from zdiloco.errors import ConfigError
from zdiloco.trace import KINDS, line_of, read_trace, record_of, write_trace

RECORDS = [
    trace.Start(t=0.0, wall=1e9, run_id="r", target_tokens=9, sync={"min_quorum": 2, "gamma": 0.5, "grace": "off"}),
    trace.Phase(t=0.5, what="state read", seconds=0.1),
    trace.Opened(t=1.0, epoch=3, shares=(0.25, 0.75), numels=(5, 15)),
    trace.Joined(t=1.0, who="a", incarnation="07"),
    trace.Member(t=2.0, who="a", state="suspect", incarnation="07", why="silent", silent_s=3.0),
    trace.Step(t=2.0, who="a", step=5, trained=50),
    trace.Call(t=3.0, fragment=1, version=1, epoch=3),
    trace.Arrived(
        t=3.5, who="a", fragment=1, version=1, seq=1, after=0, base=0, steps=5, tokens=50, nbytes=40, offer_s=0.1,
        answer_s=0.5,
    ),
    trace.Declined(t=3.5, who="b", fragment=1, version=1, reason="busy"),
    trace.Merge(
        t=4.0, fragment=1, version=1, epoch=3, tokens=50, why="everybody is in", quorum_s=0.5, grace_s=0.25,
        members=(trace.Part(name="a", incarnation="07", steps=5, tokens=50, seq=1, staleness=0),),
    ),
    trace.Published(t=4.1, fragment=1, version=1, sync_s=0.1),
    trace.Adopted(t=4.2, who="a", fragment=1, version=1),
    trace.Adapted(t=4.3, sync_period=30, min_quorum=2, why="H is 30, no longer 24: so it is"),
    trace.Fault(t=5.0, what="a link is cut"),
    trace.Killed(t=5.0, who="a"),
    trace.Stopped(t=5.0, who="b"),
    trace.Continued(t=6.0, who="b"),
    trace.Returned(t=6.0, who="a"),
    trace.Ready(t=6.5, who="a"),
    trace.Reborn(t=6.6, who="a", incarnation="08"),
    trace.Event(t=6.7, who="a", event="Received Beat", actions=("Send", "Note"), why=("nothing heard",)),
    trace.Stop(t=6.8, who="a", code=2, why="asked to"),
    trace.Ending(t=7.0, phase="draining"),
    trace.Sealed(t=7.5, epoch=3, versions=(4, 2)),
    trace.End(t=8.0, reason="over", lost_lines=1, node={"insecure": False}),
]  # fmt: skip


def test_every_kind_is_written_and_read(tmp_path: Path) -> None:
    assert {record.__struct_config__.tag for record in RECORDS} == set(KINDS)
    write_trace(tmp_path / "a.jsonl", RECORDS)
    assert read_trace(tmp_path / "a.jsonl") == RECORDS


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.__struct_config__.tag))
def test_every_kind_is_plain_facts_and_back(record: trace.Record) -> None:
    facts = trace.facts_of(record)
    assert facts["kind"] == record.__struct_config__.tag
    assert record_of(json.loads(json.dumps(facts))) == record


def test_a_run_folder_is_read_by_its_journal(tmp_path: Path) -> None:
    write_trace(tmp_path / trace.FILE, RECORDS)
    assert read_trace(tmp_path) == RECORDS


def test_a_round_says_when_it_was_called() -> None:
    assert trace.Merge(t=4.0, fragment=0, version=1, quorum_s=0.5, grace_s=0.25).called_at == 3.25
    assert trace.Merge(t=4.0, fragment=0, version=1).called_at == 4.0


def test_plain_facts_are_records_and_strange_fields_are_passed_over() -> None:
    assert record_of({"t": 1.0, "who": "a", "kind": "killed", "colour": 3}) == trace.Killed(t=1.0, who="a")
    assert record_of({"t": 1, "kind": "step", "who": "a"}) == trace.Step(t=1.0, who="a")
    merged = {"t": 1, "kind": "merge", "fragment": 0, "version": 1, "members": [["a"], ["b", "07", 3, 30]]}
    assert record_of(merged).members[1] == trace.Part(name="b", incarnation="07", steps=3, tokens=30)


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        ({"t": 1, "kind": "step", "who": "a", "step": -1}, r"Expected `int` >= 0 - at `\$.step`"),
        ({"t": 1, "kind": "call", "fragment": 600, "version": 1}, r"`\$.fragment`"),
        ({"t": 1, "kind": "call", "version": 1}, "missing required field `fragment`"),
        ({"t": 1, "kind": "dance"}, "Invalid value 'dance'.*known kinds are start, phase, opened,"),
        ({"kind": "step"}, "missing required field `t`"),
        ({"t": "now", "kind": "step"}, r"Expected `float`, got `str` - at `\$.t`"),
    ],
)
def test_a_wrong_record_is_named(tmp_path: Path, facts: dict[str, object], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        record_of(facts)
    path = tmp_path / "a.jsonl"
    path.write_bytes(line_of(RECORDS[0]) + b"\n" + trace._ENCODER.encode(facts) + b"\n")
    with pytest.raises(ConfigError, match=rf"a\.jsonl line 3 is no record of a trace: .*{wrong}"):
        read_trace(path)


@pytest.mark.parametrize("record", RECORDS[1:], ids=lambda record: str(record.__struct_config__.tag))
def test_half_a_line_is_passed_over_wherever_it_is_cut(record: trace.Record) -> None:
    """At the end after a kill, in the middle where another process went on."""
    first, line, path = line_of(RECORDS[0]), line_of(record), Path("a.jsonl")
    for length in range(2, len(line) - 1):
        assert list(trace._records(path, io.BytesIO(first + line[:length]))) == RECORDS[:1], line[:length]
        two = list(trace._records(path, io.BytesIO(first + line[:length] + b"\n" + first)))
        assert two == RECORDS[:1] * 2, line[:length]


DEEP = b'{"t":1,"x":' + b"[" * 9999 + b"}\n"


@pytest.mark.parametrize("junk", [b"\xff\xfe\n", b"[1]\n", b"7\n", b'{"t":1}}\n', DEEP])
def test_what_is_no_record_at_all_is_no_torn_line(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line_of(RECORDS[0]) + junk)
    with pytest.raises(ConfigError, match="line 2 is no record of a trace"):
        read_trace(path)


def test_an_endless_line_is_wrong_and_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(line_of(RECORDS[0]) + b'{"kind":"end","t":1,"reason":"' + b"x" * 2000)
    with pytest.raises(ConfigError, match="line 2"):
        read_trace(path)


def test_no_trace_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*nowhere"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"holds no journal\.jsonl"):
        read_trace(tmp_path)
    for empty in (b"", b"\n\n"):
        (tmp_path / trace.FILE).write_bytes(empty)
        with pytest.raises(ConfigError, match="is empty"):
            read_trace(tmp_path)
    with pytest.raises(ConfigError, match="cannot write the trace"):
        write_trace(tmp_path / "nowhere" / "a.jsonl", RECORDS)
