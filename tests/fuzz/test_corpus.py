"""Every parser over its kept inputs: each is taken or refused, at once, and in memory that its length bounds."""

import gc
import time
import tracemalloc

import pytest

from tests.fuzz import corpus
from tests.fuzz.target import MEMORY_FLOOR, Target, accepts
from tests.fuzz.targets import TARGETS

STALL_S = 5.0
"""Far above what any input needs: a stop that a busy machine does not reach."""

targets = pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)


def hostile(target: Target) -> list[bytes]:
    """The kept inputs, and some that no parser can have too many of."""
    always = [b"", b"\0" * 1000, b"\xff" * 1000, b"[" * 4000, b'{"a":' * 2000, b"\x91" * 4000, b"\x81\xa1a" * 1000]
    grown = [seed * 3 for seed in target.seeds()] + [seed[: len(seed) // 2] for seed in target.seeds()]
    return [*corpus.kept(target), *always, *grown]


def test_every_parser_has_a_corpus() -> None:
    assert {path.stem for path in corpus.FOLDER.glob("*.hex")} == TARGETS.keys()
    for target in TARGETS.values():
        kept = corpus.kept(target)
        assert kept, target.name
        assert len(set(kept)) == len(kept) <= corpus.MOST_INPUTS, target.name


@targets
def test_seeds_are_taken(target: Target) -> None:
    for data in target.seeds():
        target.parse(data)


@targets
def test_kept_inputs_are_taken_or_refused(target: Target) -> None:
    taken = 0
    for data in hostile(target):
        began = time.monotonic()
        taken += accepts(target, data)
        assert time.monotonic() - began < STALL_S, data.hex()
    assert taken < len(hostile(target)) or not target.allowed


@pytest.mark.slow
@targets
def test_memory_is_bounded_by_the_length_of_the_input(target: Target) -> None:
    """Of what Python allocates (user case E-85: nothing is allocated on a peer's word)."""
    for data in hostile(target):
        accepts(target, data)  # what is made once, such as the texts of types, does not count
    gc.collect()
    tracemalloc.start()
    try:
        for data in hostile(target):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            accepts(target, data)
            took = tracemalloc.get_traced_memory()[1] - before
            assert took <= MEMORY_FLOOR + target.grows * len(data), (took, len(data), data[:200].hex())
    finally:
        tracemalloc.stop()
