"""Two sides: what goes together, and what does not."""

import pytest

from tests.doctor.parts import bad
from zdiloco.doctor.finding import Side, Verdict
from zdiloco.doctor.living import About, about_of
from zdiloco.doctor.versions import Versions, judge_libzmq, judge_versions, own_versions
from zdiloco.node.about import about

OURS = Versions(version="0.1.0", protocol=5, libzmq="4.3.5")
THERE, WARN, FAIL = Side.THERE, Verdict.WARN, Verdict.FAIL


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        (OURS, {}),
        (Versions(version="0.1.1", protocol=5, libzmq="4.3.5"), {"version": WARN}),
        (Versions(version="0.2.0", protocol=6, libzmq="4.3.5"), {"version": WARN, "protocol": FAIL}),
        (Versions(version="0.1.0", protocol=5, libzmq="4.3.4"), {"libzmq": FAIL}),
        (Versions(version="0.1.0", protocol=5, libzmq="5.0"), {}),
    ],
)
def test_what_differs_is_named(there: Versions, wanted: dict[str, Verdict]) -> None:
    found = judge_versions(OURS, there)
    assert bad(found) == {(check, THERE): verdict for check, verdict in wanted.items()}
    assert len(found) == 3


def test_a_refusal_is_one_failure_in_the_words_of_who_refused() -> None:
    (finding,) = judge_versions(OURS, None, "the peer speaks protocol 6 and this side 5")
    assert (finding.check, finding.verdict) == ("protocol", FAIL)


def test_what_is_not_told_is_not_called_good() -> None:
    assert {finding.verdict for finding in judge_versions(OURS, None)} == {Verdict.UNKNOWN}
    assert judge_libzmq(Versions(version="x", protocol=5, libzmq="new"), THERE).verdict is Verdict.UNKNOWN
    assert judge_libzmq(own_versions(), Side.HERE).verdict is Verdict.OK


def test_a_process_tells_about_itself_what_a_doctor_takes() -> None:
    told = about()
    for answer in ({"node": {"about": told}}, {"about": told, "relay": "10.0.0.1:5710"}):
        assert about_of(answer) == About(versions=own_versions(), wall=told["wall"])


@pytest.mark.parametrize(
    "told", [None, [], {}, {"version": 1}, {"wall": "now"}, {"wall": True}, {"wall": -1}, {"wall": 10**400}]
)
def test_an_answer_is_not_believed(told: object) -> None:
    assert about_of({"node": {"about": told}}) == About()
    assert about_of({"node": told}) == About()
