"""Parsers of what lies on a disk or is typed: checkpoints, counters, notes, configuration, curves, endpoints, answers.

Rule: each works in one scratch folder of the process. Checksums that guard a file are put right after it was changed:
else nothing but the checksum would ever be tried.
"""

import atexit
import functools
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.torch
import torch
import xxhash

from tests.cli.test_relay import OWN
from tests.fuzz.target import Tape, Target
from zdiloco.cli.relay_text import relay_text
from zdiloco.cli.status import net_of
from zdiloco.cli.status_text import status_text
from zdiloco.config import RunConfig, from_tree, load, to_toml
from zdiloco.core.ledger import CutRow, FragmentRow
from zdiloco.core.machine import Save
from zdiloco.demo.learner_log import read_notes
from zdiloco.errors import ConfigError, MalformedFrame, StoreError
from zdiloco.goodput import figures_of
from zdiloco.node.chance import random_state, set_random_state
from zdiloco.node.params import MergeParams
from zdiloco.node.parts import Parts
from zdiloco.node.syncer_body import SyncerBody
from zdiloco.rundir.archive import FOLDER, Cut, FragmentCut
from zdiloco.rundir.counters import CounterFile, read_counters
from zdiloco.rundir.journal import read_journal
from zdiloco.rundir.saved import FORMAT, INNER, SavedStates
from zdiloco.rundir.store import Store
from zdiloco.rundir.tree import pack
from zdiloco.strip import chart_of
from zdiloco.tensor.layout import layout_of
from zdiloco.trace import FILE, read_trace, write_trace
from zdiloco.train import baseline
from zdiloco.train.data import ShardCursor
from zdiloco.units import Epoch, MemberKey, Merged, Stamp
from zdiloco.wire.bodies import decode_map


@functools.cache
def scratch() -> Path:
    """A folder of this process, removed at its end; in memory where the machine has such a place."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="zdiloco-fuzz-", dir=shared if shared.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def written(name: str, data: bytes) -> Path:
    """The file of this name, holding `data`."""
    path = scratch() / name
    path.write_bytes(data)
    return path


# ---- checkpoints


@functools.cache
def stored() -> tuple[Store, Path, bytes, dict[int, bytes]]:
    """A store with one good checkpoint: the store, its manifest, the manifest's bytes, those of each fragment."""
    layout = layout_of(torch.nn.Linear(3, 2), num_fragments=2)
    parts = tuple(
        FragmentCut(
            fragment=fragment.index,
            revision=1,
            stamp=Stamp(Epoch(1, 77), 4),
            theta=torch.ones(fragment.numel),
            buf=torch.ones(fragment.numel) if fragment.index else None,
            value=torch.zeros(2 * fragment.numel, dtype=torch.uint8),
            codec="bf16",
            map_=(Merged("a", 5, 3, 10, 100),),
        )
        for fragment in layout.fragments
    )
    cut = Cut(
        run_id="run-1",
        epoch=Epoch(1, 77),
        layout_digest=layout.digest,
        layout=layout.to_obj(),
        fragments=parts,
        replaced=(MemberKey("b", 9),),
    )
    store = Store(scratch() / "run", keep=2)
    manifest = store.write(cut)
    folder = scratch() / "run" / FOLDER
    return store, manifest, manifest.read_bytes(), _fragments(folder, manifest.read_bytes())


def _fragments(folder: Path, manifest: bytes) -> dict[int, bytes]:
    entries = json.loads(manifest)["fragments"]
    return {at: (folder / entry["file"]).read_bytes() for at, entry in enumerate(entries)}


def _signed(tree: dict[str, Any]) -> bytes:
    """A manifest with the digest of what it says now."""
    tree.pop("digest", None)
    text = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**tree, "digest": xxhash.xxh3_128_hexdigest(text)}).encode()


def _loaded(manifest: bytes) -> None:
    """Read the checkpoint with this manifest, as a syncer that starts does."""
    store, path, *_ = stored()
    path.write_bytes(manifest)
    cut = store.load()
    assert cut is not None
    body = SyncerBody(MergeParams())
    body.restore(cut)
    again = body.cut(cut.run_id, cut.epoch, Save(why="", replaced=cut.replaced, live=cut.live))
    assert [part.map_ for part in again.fragments] == [part.map_ for part in cut.fragments]


def parse_manifest(data: bytes) -> None:
    """Any bytes as a manifest; where they are a table, its digest is right."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        tree = None
    with suppress(ValueError, RecursionError):
        data = _signed(tree) if isinstance(tree, dict) else data
    _loaded(data)


def parse_manifest_fields(data: bytes) -> None:
    """A good manifest in which some places were replaced."""
    tape, tree = Tape(data), json.loads(stored()[2])
    for _ in range(tape.pick(3)):
        parts = tree.get("fragments")
        entry = parts[tape.pick(len(parts))] if isinstance(parts, list) and parts and tape.pick(2) else tree
        if not isinstance(entry, dict) or not entry:
            break
        name = sorted(entry)[tape.pick(len(entry))]
        how = tape.pick(8)
        if how == 0:
            del entry[name]
        elif how < 3 and isinstance(entry[name], list) and entry[name]:
            entry[name][tape.pick(len(entry[name]))] = tape.value()
        else:
            entry[name] = tape.value()
    _loaded(_signed(tree))


def parse_tensors(data: bytes) -> None:
    """Any bytes as the file of a fragment that the manifest names."""
    _, path, manifest, _ = stored()
    tree = json.loads(manifest)
    (path.parent / "fragment-000-fuzzed.safetensors").write_bytes(data)
    digest = xxhash.xxh3_128_hexdigest(data)
    tree["fragments"][0] |= {"file": "fragment-000-fuzzed.safetensors", "digest": digest, "bytes": len(data)}
    _loaded(_signed(tree))


# ---- what learners leave


def _counter_file() -> bytes:
    row = FragmentRow(unmerged=3, dropped=1, lost=0, after=2, sent=(CutRow(3, 10, False),), kept=(CutRow(2, 9, False),))
    file = CounterFile(scratch() / "run", MemberKey("a", 7), 2)
    file.write(9, 36, (row, row), left=True)
    file.close()
    return file.path.read_bytes()


def parse_counters(data: bytes) -> None:
    """Any bytes as a counter file, the checksum of its first slot put right."""
    head, slot = struct.Struct("<8sQIII64s"), struct.Struct("<QQIIQQQ")
    if len(data) >= head.size + slot.size:
        used = slot.size + slot.unpack_from(data, head.size)[2]
        body = data[head.size + 8 : head.size + used]
        data = data[: head.size] + xxhash.xxh3_64_digest(body) + data[head.size + 8 :]
    found = read_counters(written("a.counters", data))
    assert found.step >= 0
    assert all(cut.seq >= 0 for row in found.rows for cut in (*row.sent, *row.kept))


@functools.cache
def _own_parts() -> tuple[Parts, dict[str, torch.Tensor], dict[str, Any]]:
    """A small learner that has made a step, its tensors and the rest of its state, packed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    parts, tensors = Parts(model, optimizer, {"data": _Memory()}), dict[str, torch.Tensor]()
    packed = {INNER: pack(parts.inner(), INNER, tensors), **parts.pack_rest(tensors)}
    return parts, tensors, packed


class _Memory:
    """A part that takes whatever comes."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": (1, 2.5, None, b"x"), 3: [True]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""


def _saved_file() -> bytes:
    parts, tensors, packed = _own_parts()
    path = SavedStates(scratch() / "saves", "a").write(parts.about("a", "run", "run-1", 5), packed, tensors)
    assert path is not None
    data = path.read_bytes()
    path.unlink()
    return data


def _saved_parts() -> bytes:
    return json.dumps(_own_parts()[2]).encode()


def parse_saved(data: bytes) -> None:
    """Any bytes as the saved state of a learner, under the name that their digest gives; what is read is restored."""
    folder = scratch() / "saves" / "learners"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"a-000000001-{xxhash.xxh3_128_hexdigest(data)}.safetensors"
    path.write_bytes(data)
    parts, chance = _own_parts()[0], random_state()
    try:
        saved = SavedStates(scratch() / "saves", "a").read()
        assert saved is not None
        parts.check(saved, parts.about("a", "run", "run-1", 5), warm=True)
        parts.restore(saved, warm=True)
    finally:
        path.unlink()
        set_random_state(chance)


def parse_saved_parts(data: bytes) -> None:
    """Any text as the tree of a saved state, beside good tensors."""
    parts, tensors, _ = _own_parts()
    about = msgspec.json.encode(parts.about("a", "run", "run-1", 5)).decode()
    head = {"format": FORMAT, "about": about, "parts": data.decode("utf-8", "replace")}
    parse_saved(safetensors.torch.save(tensors, metadata=head))


def parse_journal(data: bytes) -> None:
    """Any bytes as the journal of a run."""
    written(FILE, data)
    assert all(isinstance(line["kind"], str) for line in read_journal(scratch()))


TRACE = (
    b'{"kind":"start","t":1.5,"wall":1e9,"sync":{"gamma":0.5}}\n{"kind":"opened","t":2.0,"shares":[0.25,0.75]}\n'
    b'{"kind":"joined","t":2.0,"who":"a","incarnation":"07"}\n{"kind":"step","t":3.0,"who":"a","step":4,"trained":40}\n'
    b'{"kind":"call","t":3.0,"fragment":1,"version":1}\n{"kind":"step","t":4.0,"who":"a","step":5,"trained":50}\n'
    b'{"kind":"arrived","t":4.5,"who":"a","fragment":1,"version":1,"seq":1,"steps":5,"tokens":50,"answer_s":1.5}\n'
    b'{"kind":"merge","t":4.5,"fragment":1,"version":1,"members":[["a","07",5,50,1,0]],"quorum_s":1.5,"grace_s":0.0}\n'
    b'{"kind":"member","t":9.0,"who":"a","state":"gone","silent_s":3.5}\n{"kind":"end","t":9.5,"lost_lines":1}\n'
)


def parse_trace(data: bytes) -> None:
    """Any bytes as a trace: whatever is read can be counted, drawn and written again."""
    records = read_trace(written("a.trace", data))
    found = figures_of(records)
    assert all(each.seconds >= 0 and each.rounds >= 0 for each in found.learners)
    spans = [strip.training + strip.stalled + strip.silent + strip.dead for strip in chart_of(records).strips]
    assert all(b >= a for each in spans for a, b in each)
    write_trace(scratch() / "a.trace", records)
    assert read_trace(scratch() / "a.trace") == records


NOTES = (
    b'{"t":1.5,"kind":"start","wall":9.5,"name":"a","incarnation":"07"}\n'
    b'{"t":2.5,"kind":"steps","step":1,"steps":1,"loss":2.1,"tokens":4,"step_us":[9],"call_us":[1],'
    b'"progress":0.1,"bytes_up":1,"bytes_down":2}\n{"t":3.0,"kind":"end","reason":"over","steps":1}\n'
)


def parse_notes(data: bytes) -> None:
    """Any bytes as the notes of a learner."""
    notes = read_notes(written("a.jsonl", data))
    assert all(seconds == seconds for seconds in notes.step_s + notes.call_s)


# ---- what is configured


def parse_config(data: bytes) -> None:
    """Any bytes as a run.toml; what came out is written and read back the same."""
    config = load(written("run.toml", data))
    assert load(written("again.toml", to_toml(config).encode())) == config


def parse_override(data: bytes) -> None:
    """Any text after --set."""
    from_tree({}, [data.decode("utf-8", "surrogateescape")])


def parse_endpoint(data: bytes) -> None:
    """Any text as the endpoint of a status query."""
    net = net_of(data.decode("utf-8", "surrogateescape"))
    assert 1024 <= net.port <= 65532


def parse_baseline(data: bytes) -> None:
    """Any bytes as the curve of a lone learner."""
    found = baseline.curve(written("baseline.json", data))
    assert found.at_step(found.points[0].steps)[0] == found.points[0].mean


@functools.cache
def _walk() -> ShardCursor:
    return ShardCursor(np.arange(200, dtype=np.uint8), index=0, batch_size=2, context=8, seed=1)


NO_STATE = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ConfigError)
"""What a part may raise that is handed another's state."""


def parse_cursor(data: bytes) -> None:
    """Any bytes as the saved place of a learner in its data."""
    _walk().load_state_dict(json.loads(data))
    assert _walk().next_batch().shape == (2, 9)


ANSWER = {
    "run_id": "r", "epoch": 1, "phase": "running", "target_tokens": 10, "progress": 0.5, "merged_tokens": 5.0,
    "rounds": 1, "mean_participants": 1.0, "live": 1, "quorum": 1, "max_open_rounds": 1,
    "waits": ["nobody waits"], "ledger": {"trained": 9, "merged": 5, "lost": None}, "node": {"insecure": True},
    "fragments": [{"fragment": 0, "version": 1, "stable": None, "held": 0, "round": {"state": "open"}, "why": ""}],
    "learners": [
        {"name": "a", "state": "live", "step": 1, "steps_per_s": 1.0, "staleness": None, "rounds": 1,
         "merged_tokens": 5.0, "last_seen_s": 0.5, "why": "training", "behind": ""},
    ],
}  # fmt: skip


def parse_answer(data: bytes) -> None:
    """Any bytes as a syncer's or a relay's answer to a status query, shown to a person."""
    found = decode_map(data, 2**16)
    text = relay_text(found) if "relay" in found else status_text(found)
    assert all(line.isprintable() for line in text.split("\n"))


def _target(name: str, parse: Callable[[bytes], None], seeds: Callable[[], list[bytes]], **more: Any) -> Target:
    return Target(name=name, parse=parse, seeds=seeds, **{"allowed": (StoreError,), **more})


TARGETS = (
    _target("manifest", parse_manifest, lambda: [stored()[2]], allowed=(StoreError, ConfigError), slow=True),
    _target(
        "manifest_fields",
        parse_manifest_fields,
        lambda: [b""],
        allowed=(StoreError, ConfigError),
        grows=80_000,
        slow=True,
    ),
    _target("tensors", parse_tensors, lambda: [stored()[3][0]], allowed=(StoreError, ConfigError), slow=True),
    _target("counters", parse_counters, lambda: [_counter_file()]),
    _target(
        "journal",
        parse_journal,
        lambda: [b'{"kind":"start","t":1.5}\n\n{"kind":"merge","members":[["a","07",1,2]]}'],
        allowed=(),
    ),
    _target("trace", parse_trace, lambda: [TRACE], allowed=(ConfigError,), grows=2000),
    _target("notes", parse_notes, lambda: [NOTES]),
    _target(
        "config",
        parse_config,
        lambda: [to_toml(RunConfig()).encode(), b'[run]\ndir = "a\\nb"\n[net]\nport = 0x1f40\nstall_s = 1e0'],
        allowed=(ConfigError,),
        grows=2000,
        slow=True,
    ),
    _target(
        "override",
        parse_override,
        lambda: [b"sync.min_quorum=3", b"run.dir=x", b"net.connect='a'", b"learner.blend=0.5"],
        allowed=(ConfigError,),
    ),
    _target(
        "endpoint", parse_endpoint, lambda: [b"127.0.0.1:5700", b"tcp://[::1]:1024", b"a:65532"], allowed=(ConfigError,)
    ),
    _target("baseline", parse_baseline, lambda: [baseline.SHIPPED.read_bytes()]),
    _target("cursor", parse_cursor, lambda: [json.dumps(_walk().state_dict()).encode()], allowed=NO_STATE),
    _target("saved", parse_saved, lambda: [_saved_file()], allowed=(StoreError, ConfigError), slow=True),
    _target("saved_parts", parse_saved_parts, lambda: [_saved_parts()], allowed=(StoreError, ConfigError), slow=True),
    _target("answer", parse_answer, lambda: [json.dumps(a).encode() for a in (ANSWER, OWN)], allowed=(MalformedFrame,)),
)
