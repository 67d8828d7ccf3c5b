"""Real `tc netem`: real processes in a virtual machine of software, whose kernel has it whatever this one has."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.wan.vm.inside import AFTER_MBIT_S, RATES
from tests.wan.vm.lab_inside import MBIT_S, SHORT_S
from tests.wan.vm.machine import Kernel, machine

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.wan, pytest.mark.slow, pytest.mark.timeout(1200)]
LIMIT_S = 900.0
"""It takes about four minutes where nothing else runs."""
HEADERS = 1.15
"""A link carries no more than so many times what is paid out."""


@pytest.fixture(scope="module")
def results(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the machine has told, by case."""
    with machine(kernel, "tests.wan.vm.inside", tmp_path_factory.mktemp("netem") / "machine") as made:
        made.wait(LIMIT_S)
        return made.told()


def test_a_lab_of_wan_lab_is_made_of_netem(
    results: dict[str, list[dict[str, Any]]], say: Callable[[str], None]
) -> None:
    """It chooses the kernel's own engine; what crosses its links has their delay and rate; nothing is left."""
    (line,) = results["lab"]
    ways = {name: line[name] for name in ("way_s", "changed_way_s", "healed_way_s")}
    shown = ", ".join(f"{1e3 * way_s:.0f}" for way_s in ways.values())
    say(
        f"wan-lab, engine {line['engine']}: there and back {shown} ms, "
        f"raw TCP {line['mbit_s']:.2f} of {MBIT_S:g} Mbit/s"
    )
    assert line["engine"] == "netem"
    assert "netem" in line["qdiscs"]
    assert "tbf" in line["qdiscs"]
    assert 0.08 <= ways["way_s"] <= 0.16
    assert 0.12 <= ways["changed_way_s"] <= 0.24
    assert 0.12 <= ways["healed_way_s"] <= 0.24
    assert 0.8 * MBIT_S <= line["mbit_s"] <= 1.05 * MBIT_S
    assert line["cut_s"] >= SHORT_S
    assert line["left"] == []


def test_contributions_take_what_netem_gives(
    results: dict[str, list[dict[str, Any]]], say: Callable[[str], None]
) -> None:
    """Payload of a contribution by the time that its bytes take, ÷ the rate, with a delay of 40 ms each way."""
    rates = {line["mbit_s"]: line for line in results["rate"]}
    assert list(rates) == [mbit_s for mbit_s, _ in RATES]
    shares = {}
    for mbit_s, line in rates.items():
        each = sorted(line["goodput_mbit_s"])
        shares[mbit_s] = each[len(each) // 2] / mbit_s
        carried = line["carried"]["up"]
        shown = ", ".join(f"{one:.1f}" for one in each)
        say(
            f"netem rate {mbit_s:g} Mbit/s: contributions at {shown} Mbit/s; tc counts "
            f"{carried['bytes'] / 1e6:.1f} MB in {carried['packets']} packets up, {carried['drops']} dropped"
        )
        least = len(each) * line["nbytes"]
        assert carried["packets"] > 0
        assert least <= carried["bytes"], "they have come across this link"
        assert carried["bytes"] <= HEADERS * (least + 2 * line["nbytes"]), "one before and one after them, and headers"
    assert all(0.8 <= share <= 1.05 for share in shares.values()), shares


def test_a_contribution_follows_a_change_of_rate(
    results: dict[str, list[dict[str, Any]]], say: Callable[[str], None]
) -> None:
    (line,) = results["change"]
    say(
        f"{line['slow_s']:.1f} s at {RATES[-1][0]:g} Mbit/s, then {line['fast_s']:.1f} s at {AFTER_MBIT_S:g}: "
        f"{line['goodput']:.2f} of what both could carry"
    )
    assert 0.6 <= line["goodput"] <= 1.05


def test_a_lossy_link_delivers(results: dict[str, list[dict[str, Any]]], say: Callable[[str], None]) -> None:
    (line,) = results["loss"]
    lost = {way: carried["drops"] / carried["packets"] for way, carried in line["carried"].items()}
    say(f"1 % of loss: netem dropped {', '.join(f'{100 * share:.1f} % {way}' for way, share in lost.items())}")
    assert lost["up"] > 0.0
    assert lost["down"] > 0.0


def test_a_region_that_is_cut_off_trains_on_and_is_merged_afterwards(
    results: dict[str, list[dict[str, Any]]], say: Callable[[str], None]
) -> None:
    (line,) = results["partition"]
    say(
        f"cut off: {line['far_steps']} steps there, {line['rounds']} rounds of the others, "
        f"{line['carried']['up']['drops']} packets dropped; merged {line['merged_s']:.0f} s after it healed"
    )
    assert line["far_steps"] > 0
    assert line["rounds"] > 0
    assert line["carried"]["up"]["drops"] > 0


def test_the_ledger_balances_after_every_case(results: dict[str, list[dict[str, Any]]]) -> None:
    lines = [line for case, each in results.items() for line in each if case != "lab"]
    assert len(lines) == 1 + len(RATES) + 4
    assert {line["ledger"] for line in lines} == {0}
    assert list(results) == ["lab", "joins", "rate", "change", "loss", "partition", "end"]
