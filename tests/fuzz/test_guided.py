"""Every parser under the coverage-guided engine: no fault, no hang, no memory beyond its bound (user case E-91).

`bin/test --all` gives each parser 10,000 inputs, and 20 s at most; `--long` 100,000.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fuzz.guided import START_S, Engine, guided
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

INPUTS = 100_000
FEW_INPUTS = 10_000
SHORT_S = 20
LONG_S = 600
LEAST = 200
"""Inputs that the slowest parser tries in `SHORT_S` on a busy machine: fewer, and the engine did not work."""

targets = pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
pytestmark = [
    pytest.mark.proc,
    pytest.mark.beside,
    pytest.mark.skipif(
        importlib.util.find_spec("atheris") is None and not os.environ.get("CI"),
        reason="atheris is for Linux on x86-64, Python 3.11 to 3.13",
    ),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The engine; what it has started has ended when the tests of this file are over."""
    with closing(Engine()) as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(2 * START_S + 2 * SHORT_S)
@targets
def test_for_ten_thousand_inputs(target: Target, tmp_path: Path, engine: Engine) -> None:
    ended = guided(engine, target, tmp_path, inputs=FEW_INPUTS, seconds=SHORT_S)
    assert not ended.fault, ended.fault
    assert ended.tried >= LEAST


@pytest.mark.long
@pytest.mark.timeout(2 * START_S + 2 * LONG_S)
@targets
def test_for_a_hundred_thousand_inputs(target: Target, tmp_path: Path, engine: Engine) -> None:
    ended = guided(engine, target, tmp_path, inputs=INPUTS, seconds=LONG_S)
    assert not ended.fault, ended.fault
    assert ended.tried >= INPUTS
    print(f"{target.name}: {ended.tried} inputs")
