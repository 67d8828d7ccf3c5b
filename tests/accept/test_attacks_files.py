"""Attacks of docs/attacks.md by what lies on a disk, or is told to a machine that joins: real commands meet it."""

import io
import json
import os
import pickle
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash
import zmq

from tests.accept.stage import SLOW_MACHINE_S, Stage
from tests.hostile.enemy import _Bomb, zip_bomb
from tests.hostile.test_processes import Figures
from tests.rundir.test_export import Tied, cut_of, saved
from zdiloco.node.invitation import Invitation, to_line
from zdiloco.node.keys import Pair, make_pair
from zdiloco.rundir.manifest import signed
from zdiloco.wire.encoding import encode
from zdiloco.wire.invitations import Joined

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]
MB = 2**20
Spoil = Callable[[Path, dict[str, Any], Path], None]


def content(data: bytes) -> Spoil:
    """The newest fragment is these bytes, and the manifest names their digest and length."""

    def spoil(file: Path, entry: dict[str, Any], aside: Path) -> None:
        file.write_bytes(data)
        entry.update(bytes=len(data), digest=xxhash.xxh3_128_hexdigest(data))

    return spoil


def declared(nbytes: int) -> bytes:
    """A safetensors file that claims a tensor of so many bytes, and has none of them."""
    table = {"theta": {"dtype": "F32", "shape": [nbytes // 4], "data_offsets": [0, nbytes]}}
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text


def linked(target: str) -> Spoil:
    """The file of the fragment is a link to something else."""

    def spoil(file: Path, entry: dict[str, Any], aside: Path) -> None:
        file.unlink()
        file.symlink_to(target)

    return spoil


def out_of_the_folder(file: Path, entry: dict[str, Any], aside: Path) -> None:
    aside.write_bytes(file.read_bytes())
    entry["file"] = f"../../{aside.name}"


def pipe(file: Path, entry: dict[str, Any], aside: Path) -> None:
    file.unlink()
    os.mkfifo(file)


SPOILED: dict[str, tuple[Spoil, str]] = {
    "pickle": (content(pickle.dumps(_Bomb())), "is not a safetensors file"),
    "zip bomb": (content(zip_bomb()), "is not a safetensors file"),
    "2^60 bytes declared": (content(declared(2**60)), "is not a safetensors file"),
    "a name out of the folder": (out_of_the_folder, "a file name that cannot be ours"),
    "a link to /dev/zero": (linked("/dev/zero"), "it is no file"),
    "a pipe": (pipe, "it is no file"),
}


@pytest.mark.parametrize("how", list(SPOILED))
def test_a_hostile_checkpoint(stage: Stage, how: str) -> None:
    """F-1: a fragment that is a pickle, an archive, claims 2^60 bytes, lies elsewhere, is a link to what never ends, or
    is a pipe, with a manifest whose digests are right: `sync` and `checkpoint` say so and end."""
    spoil, says = SPOILED[how]
    saved(stage.run_dir, cut_of(Tied(1)))
    (manifest,) = (stage.run_dir / "checkpoints").glob("manifest-*")
    tree = json.loads(manifest.read_bytes())
    del tree["digest"]
    entry = tree["fragments"][0]
    spoil(manifest.parent / entry["file"], entry, stage.folder / "aside")
    manifest.write_bytes(signed(tree))
    run = str(stage.run_dir)
    for words in (["verify", run], ["show", run], ["export", run, str(stage.folder / "out.safetensors")]):
        command = stage.command("checkpoint", *words, label=words[0])
        code = command.wait(60.0)
        said = command.output + command.errors
        assert code in ((0, 1, 2) if words[0] == "show" else (1, 2)), said
        assert "Traceback" not in said
        assert says in said or words[0] == "show", said
    syncer = stage.sync()
    assert syncer.wait(60.0) == 2, syncer.errors
    assert says in syncer.errors
    assert "Traceback" not in syncer.errors
    assert not (stage.folder / "out.safetensors").exists()


def test_a_manifest_that_never_ends(stage: Stage) -> None:
    """F-2: a link to /dev/zero, or a pipe, where a manifest lies: it is passed over with its reason."""
    saved(stage.run_dir, cut_of(Tied(1)))
    (manifest,) = (stage.run_dir / "checkpoints").glob("manifest-*")
    manifest.unlink()
    for make in (lambda: manifest.symlink_to("/dev/zero"), lambda: os.mkfifo(manifest)):
        make()
        for words in (["checkpoint", "verify", str(stage.run_dir)], ["ledger", "verify", str(stage.run_dir)]):
            command = stage.command(*words, label="-".join(words[:2]))
            assert command.wait(60.0) in (1, 2)
            assert "it is no file" in command.output + command.errors
        manifest.unlink()


# ---- what a syncer tells


@contextmanager
def false_syncer(port: int, pair: Pair, answer: bytes) -> Iterator[None]:
    """Somebody with a key of its own who answers whatever is said on the control road with this."""
    over = threading.Event()

    def serve() -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as made:
            made.setsockopt(zmq.LINGER, 0)
            made.curve_server, made.curve_secretkey = True, pair.secret
            made.bind(f"tcp://127.0.0.1:{port}")
            while not over.is_set():
                if made.poll(50):
                    made.send_multipart([made.recv_multipart()[0], answer])

    thread = threading.Thread(target=serve, name="false-syncer")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


HOSTILE_SETTINGS = {
    "run.dir": '"/etc"', "net.keys": '"/tmp"', "net.connect": '"elsewhere"', "task.seed": "9" * 400,
    "sync.budget_bytes": "-1", "sync.nothing": "1", "task.preset": '"a" \n[run]\ndir = "/etc"',
    "learner.codec": "[" * 900,
    "nowhere": "1", "run.name": '"../../etc"',
}  # fmt: skip


@pytest.mark.parametrize("path", list(HOSTILE_SETTINGS))
def test_hostile_settings_told_to_a_machine_that_joins(stage: Stage, tmp_path: Path, path: str) -> None:
    """F-3: whoever made the invitation tells settings of this machine's own, of none, or that cannot be: `zdiloco join`
    ends with code 2 and a line that names the setting, and writes no run.toml."""
    make_pair(tmp_path / "theirs", "syncer")
    invitation, server = Pair(*zmq.curve_keypair()), Pair(*zmq.curve_keypair())
    line = to_line(Invitation(
        host="127.0.0.1", port=stage.port, run="run", name="eu-0", server=server.public.decode(),
        secret=invitation.secret.decode(),
    ))  # fmt: skip
    told = encode(Joined(run_id="run-1", settings=((path, HOSTILE_SETTINGS[path]),)))
    place = stage.folder / "eu-0"
    with false_syncer(stage.port, server, told):
        command = stage.command("join", line, "--dir", str(place), label="join")
        code = command.wait(60.0)
    assert code == 2, command.errors
    assert "Traceback" not in command.errors
    assert path.split(".")[0] in command.errors
    assert not (place / "run.toml").exists()


def test_a_false_syncer_at_the_right_address(stage: Stage) -> None:
    """F-4: a learner dials, and who answers there has another key: it says so and ends, and has told nothing."""
    keys = stage.made_keys("a")
    stage.write(net={"keys": str(keys)})
    with false_syncer(stage.port, Pair(*zmq.curve_keypair()), b"x" * 100):
        learner = stage.script("a")
        figures = Figures(learner)
        assert figures.threads > 0
        assert learner.wait() != 0
    assert "does not answer to the key syncer.key" in learner.errors


def test_a_stream_of_bytes_is_no_invitation(stage: Stage) -> None:
    """F-5: lines that were made up: none is taken for an invitation, and nobody is dialled."""
    for line in ("zdiloco1-", "zdiloco1-" + "A" * 1900, "zdiloco1-" + "A" * 5000, io.StringIO().getvalue() or "x"):
        command = stage.command("join", line, "--dir", str(stage.folder / "x"), label="join")
        assert command.wait(60.0) == 2
        assert "this is not the whole line" in command.errors
