"""The knobs of the real world: what passes here fails nowhere later, and errors name the key as it is written."""

import pytest

from zdiloco.errors import ConfigError
from zdiloco.node.params import NetParams

WRONG = [
    ("net.window_bytes", {"window_bytes": 2**29}),
    ("net.window_bytes", {"window_bytes": 1000}),
    ("net.give_up_s", {"stall_s": 20.0}),
    ("net.give_up_s", {"give_up_s": 5.0}),
    ("net.stall_s", {"stall_s": 0.0}),
]


@pytest.mark.parametrize(("key", "wrong"), WRONG)
def test_what_an_inbox_cannot_work_with_is_refused_at_once(key: str, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"^{key} is "):
        NetParams(**wrong)


@pytest.mark.parametrize(
    "extreme",
    [
        {"window_bytes": 2**28, "stall_s": 3600.0, "give_up_s": 10_800.0},
        {"window_bytes": 1024, "chunk_bytes": 1024, "stall_s": 0.01, "give_up_s": 0.03},
        {"give_up_s": 1e6},
    ],
)
def test_what_is_allowed_makes_an_inbox(extreme: dict[str, float]) -> None:
    net = NetParams(**extreme)
    for budget_bytes in (2**16, 2**50):
        made = net.inbox(budget_bytes)
        assert (made.budget_bytes, made.window_bytes) == (budget_bytes, net.window_bytes)
        assert (made.stall_s, made.give_up_s) == (net.stall_s, net.give_up_s)
