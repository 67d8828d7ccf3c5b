"""The disk under run.dir: whether it can be written, what is free, and how fast it is when each write must be durable.

Rule: what is written has no name, so nothing is left however this ends; at most WRITTEN_BYTES in about WRITE_S. A disk
that does not come back within HANGS_S is given up.
"""

import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from zdiloco.doctor.finding import Finding, Measured, Side, Verdict, found, graded, unknown
from zdiloco.doctor.needs import Need
from zdiloco.node.clock import monotonic

WRITTEN_BYTES, PIECE = 2**24, 2**20
WRITE_S, HANGS_S = 2.0, 20.0
PAGES = 3
ROOMY = 2.0
SLOW_SYNC_S = 1.0
"""A checkpoint syncs a file for each fragment that has changed."""
MB, GB = 1e6, 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """`place`: where it was tried, the folder or the nearest above it that exists; `refused`: why it cannot be written;
    `sync_s`: what one page takes until it is durable, the best of three. None: not measured."""

    place: Path
    refused: str = ""
    free_bytes: float | None = None
    bytes_s: float | None = None
    sync_s: float | None = None


def read_disk(run_dir: Path) -> Disk:
    """Try the disk."""
    place = next(each for each in (run_dir.absolute(), *run_dir.absolute().parents) if os.path.exists(each))
    answers: list[Disk] = []
    thread = threading.Thread(target=lambda: answers.append(_tried(place)), name="doctor-disk", daemon=True)
    thread.start()
    thread.join(HANGS_S)
    return answers[0] if answers else Disk(place=place, refused=f"no write has ended within {HANGS_S:g} s")


def _tried(place: Path) -> Disk:
    try:
        free = float(shutil.disk_usage(place).free)
        with tempfile.TemporaryFile(dir=place, buffering=0) as file:
            most = min(WRITTEN_BYTES, int(free / 4))
            bytes_s = _written(file.fileno(), most)
            sync_s = min(_page_s(file.fileno()) for _ in range(PAGES))
            return Disk(place=place, free_bytes=free, bytes_s=bytes_s, sync_s=sync_s)
    except OSError as error:
        return Disk(place=place, refused=error.strerror or str(error))


def _page_s(descriptor: int) -> float:
    began = monotonic()
    os.pwrite(descriptor, bytes(4096), 0)
    os.fsync(descriptor)
    return monotonic() - began


def _written(descriptor: int, most: int) -> float | None:
    """Bytes a second; None: there is no room to try."""
    if most < PIECE:
        return None
    block, began, count = os.urandom(PIECE), monotonic(), 0
    while count + PIECE <= most and monotonic() - began < WRITE_S:
        count += os.write(descriptor, block)
        os.fsync(descriptor)
    return count / max(monotonic() - began, 1e-6)


def judge_disk(disk: Disk, need: Need) -> list[Finding]:
    """Whether it holds what the role keeps, and takes it in time. A relay has no disk."""
    if not need.disk.key:
        return [unknown("disk place", Side.HERE, "this role writes nothing")]
    place = Measured(said=f"{disk.place}{f': {disk.refused}' if disk.refused else ''}")
    if disk.refused:
        return [found("disk place", Side.HERE, Verdict.FAIL, place, place="FOLDER")]
    return [found("disk place", Side.HERE, Verdict.OK, place), _space(disk, need), _speed(disk, need)]


def _space(disk: Disk, need: Need) -> Finding:
    if disk.free_bytes is None:
        return unknown("disk space", Side.HERE, "the system does not tell")
    said = f"{disk.free_bytes / GB:.3g} GB free, {need.disk.nbytes / GB:.3g} GB needed"
    verdict = graded(disk.free_bytes, ROOMY * need.disk.nbytes, need.disk.nbytes)
    measured = Measured(said=said, value=disk.free_bytes, unit="bytes")
    lacking = max(0.0, ROOMY * need.disk.nbytes - disk.free_bytes)
    return found("disk space", Side.HERE, verdict, measured, gigabytes=f"{lacking / GB:.3g}", place="FOLDER")


def _speed(disk: Disk, need: Need) -> Finding:
    if disk.bytes_s is None or disk.sync_s is None:
        return unknown("disk speed", Side.HERE, "there is no room to try it")
    verdict = graded(disk.bytes_s, ROOMY * need.disk.bytes_s, need.disk.bytes_s)
    if verdict is Verdict.OK and disk.sync_s > SLOW_SYNC_S:
        verdict = Verdict.WARN
    said = (
        f"{disk.bytes_s / MB:.3g} MB/s synced, {need.disk.bytes_s / MB:.3g} MB/s needed; a page takes "
        f"{disk.sync_s * 1e3:.3g} ms"
    )
    slower = max(2.0, ROOMY * need.disk.bytes_s / max(disk.bytes_s, 1.0))
    measured = Measured(said=said, value=disk.bytes_s, unit="bytes/s")
    seconds = f"{slower * need.disk.every_s:.3g}"
    return found("disk speed", Side.HERE, verdict, measured, key=need.disk.key, seconds=seconds)
