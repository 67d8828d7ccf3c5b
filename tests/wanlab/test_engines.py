"""What `tc` is told for a link, by either engine."""

from zdiloco.wanlab.engines import Laid, qdiscs
from zdiloco.wanlab.profile import Traits

TRAITS = Traits(rate_mbit_s=200, delay_ms=40, jitter_ms=2, loss_percent=0.1, queue_ms=100)
TBF = "tbf rate 200000000bit burst 50000 latency 100000us"


def told(engine: str, traits: Traits = TRAITS, cut: bool = False) -> list[str]:
    link = Laid(
        name="x", number=1, between=("a", "b"), namespaces=("na", "nb"), engine=engine, traits=traits, cut=cut
    )  # fmt: skip
    return [" ".join(words) for words in qdiscs(link)]


def test_the_kernel_does_all_of_it() -> None:
    assert told("netem") == [
        "root handle 1: netem limit 18750 delay 40000us 2000us loss 0.1%",
        f"parent 1:1 handle 10: {TBF}",
    ]


def test_the_kernel_does_the_rate_only() -> None:
    assert told("tun") == [f"root handle 1: {TBF}"]


def test_what_is_cut_loses_all() -> None:
    assert told("netem", cut=True)[0].endswith("loss 100%")


def test_a_slow_link_still_takes_a_packet() -> None:
    assert "burst 3200 " in told("tun", Traits(rate_mbit_s=0.01))[0]
