"""A spec is checked at the door."""

import pytest

from zdiloco.errors import ConfigError
from zdiloco.tensor.spec import MAX_NUMEL, TensorKind, TensorSpec

GOOD = {"name": "w", "shape": (2, 3), "dtype": "float32", "kind": TensorKind.MATRIX}


def test_numel_is_the_product_of_the_shape():
    assert TensorSpec(**GOOD).numel == 6
    assert TensorSpec(**GOOD | {"shape": ()}).numel == 1
    assert TensorSpec(**GOOD | {"shape": (3, 0)}).numel == 0


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""}, {"name": "x" * 513}, {"name": 3}, {"shape": [2, 3]}, {"shape": (-1,)}, {"shape": (True,)},
        {"shape": (2.0,)}, {"shape": (1,) * 17}, {"shape": (MAX_NUMEL, 2)}, {"dtype": "int8"}, {"dtype": None},
        {"kind": "matrix"},
    ],
)  # fmt: skip
def test_a_field_out_of_bounds_is_refused(change):
    with pytest.raises(ConfigError):
        TensorSpec(**GOOD | change)
