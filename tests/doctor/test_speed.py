"""Codecs: judged by how much of a period they take, and tried for real."""

import pytest

from tests.doctor.parts import need
from zdiloco.doctor.finding import Verdict
from zdiloco.doctor.needs import Codes, Role
from zdiloco.doctor.speed import Speed, judge_speed, read_speed

EACH = Codes(encoded="int8", encode_values_s=1e8, decoded="bf16", decode_values_s=1e8)


@pytest.mark.parametrize(
    ("values_s", "verdict"), [(1e9, Verdict.OK), (3e8, Verdict.WARN), (1.5e8, Verdict.FAIL)]
)  # fmt: skip
def test_both_codecs_together_must_leave_half_of_the_time(values_s: float, verdict: Verdict) -> None:
    speed = Speed(encode_values_s=values_s, decode_values_s=values_s, threads=1)
    finding = judge_speed(speed, need(codec=EACH))
    assert finding.verdict is verdict
    assert finding.fix == ("" if verdict is Verdict.OK else "--set learner.codec=bf16")


def test_where_the_codec_is_the_fastest_already_a_longer_period_helps() -> None:
    codec = Codes(encoded="bf16", encode_values_s=1e8, decoded="bf16", decode_values_s=1e8)
    finding = judge_speed(Speed(encode_values_s=1e8, decode_values_s=1e8, threads=1), need(codec=codec))
    assert finding.fix == "--set sync.sync_period=96"


def test_each_role_tries_what_it_does() -> None:
    sync, learner = need(Role.SYNC, learners=4).codec, need(Role.LEARNER, learners=4).codec
    assert sync.decode_values_s == pytest.approx(4 * learner.encode_values_s)
    found = read_speed(need())
    assert found is not None
    assert min(found.encode_values_s, found.decode_values_s) > 1e6
    assert found.threads == 1
    assert read_speed(need(Role.RELAY)) is None
    assert judge_speed(None, need(Role.RELAY)).verdict is Verdict.UNKNOWN
