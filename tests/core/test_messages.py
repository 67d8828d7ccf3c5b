"""Messages are checked when they are made: whoever receives one may trust its bounds."""

import dataclasses
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import BODY, EPOCH, MESSAGES
from zdiloco.core import bounds
from zdiloco.core import messages as w
from zdiloco.units import NO_STAMP, Epoch, Stamp

BY_NAME = {type(message).__name__: message for message in MESSAGES}
BIG, NAN = bounds.MAX_COUNT + 1, float("nan")
BAD: list[tuple[str, str, Any, str]] = [
    ("Hello", "name", "", "0 characters; allowed is 1 to 64"),
    ("Hello", "name", "n" * 65, "65 characters; allowed is 1 to 64"),
    ("Hello", "incarnation", 0, "Hello.incarnation is 0"),
    ("Hello", "incarnation", 2**64, "Hello.incarnation"),
    ("Hello", "run_id", "r" * 65, "Hello.run_id has more than 64 characters"),
    ("Hello", "layout_digest", "d" * 65, "Hello.layout_digest has more than 64"),
    ("Hello", "epoch", Epoch(-1, 0), "Hello holds the epoch"),
    ("Hello", "epoch", Epoch(1, 2**64), "Hello holds the epoch"),
    ("Hello", "stamps", (Stamp(EPOCH, -2),), "Hello holds version -2"),
    ("Hello", "stamps", (NO_STAMP,) * 513, "513 entries; allowed is 512"),
    ("Hello", "region", "r" * 65, "Hello.region is 'rrr.*allowed is what may be a name, or nothing"),
    ("Hello", "region", "a\nb", "Hello.region is 'a.*allowed is what may be a name, or nothing"),
    ("Report", "step", -1, "Report.step"),
    ("Report", "trained_tokens", BIG, "Report.trained_tokens"),
    ("Report", "unmerged_tokens", -0.1, "Report.unmerged_tokens"),
    ("Report", "unmerged_tokens", NAN, "Report.unmerged_tokens is nan"),
    ("Report", "dropped_tokens", NAN, "Report.dropped_tokens"),
    ("Heartbeat", "codec_why", "w" * 513, "Heartbeat.codec_why has more than 512"),
    ("Heartbeat", "epoch", Epoch(BIG, 0), "Heartbeat holds the epoch"),
    ("Contribution", "fragment", -1, "Contribution.fragment"),
    ("Contribution", "fragment", 513, "Contribution.fragment"),
    ("Contribution", "seq", 0, "Contribution.seq is 0; allowed is 1 to"),
    ("Contribution", "after", -1, "Contribution.after"),
    ("Contribution", "steps", BIG, "Contribution.steps"),
    ("Contribution", "tokens", -1, "Contribution.tokens"),
    ("Contribution", "cut_step", -1, "Contribution.cut_step"),
    ("Contribution", "version", -1, "Contribution.version"),
    ("Contribution", "codec", "c" * 65, "Contribution.codec"),
    ("Contribution", "stamp", Stamp(EPOCH, BIG), "Contribution holds version"),
    ("Decline", "fragment", -1, "Decline.fragment"),
    ("Decline", "version", -1, "Decline.version"),
    ("Decline", "reason", "r" * 513, "Decline.reason has more than 512"),
    ("Decline", "eta_s", -1.0, "Decline.eta_s"),
    ("Decline", "eta_s", NAN, "Decline.eta_s is nan"),
    ("Pull", "fragment", -1, "Pull.fragment"),
    ("LayoutOffer", "digest", "d" * 65, "LayoutOffer.digest"),
    ("InitialOffer", "fragment", -1, "InitialOffer.fragment"),
    ("Handback", "fragment", -1, "Handback.fragment"),
    ("Handback", "value_bytes", -1, "Handback.value_bytes"),
    ("Handback", "codec", "c" * 65, "Handback.codec"),
    ("Handback", "stamp", Stamp(EPOCH, -2), "Handback holds version -2"),
    ("Goodbye", "reason", "r" * 513, "Goodbye.reason"),
    ("Goodbye", "trained_tokens", -1, "Goodbye.trained_tokens"),
    ("Goodbye", "left_tokens", NAN, "Goodbye.left_tokens"),
    ("Goodbye", "dropped_tokens", -1.0, "Goodbye.dropped_tokens"),
    ("Welcome", "epoch", Epoch(-1, 0), "Welcome holds the epoch"),
    ("Welcome", "run_id", "r" * 65, "Welcome.run_id"),
    ("Welcome", "order", -1, "Welcome.order"),
    ("Welcome", "progress", NAN, "Welcome.progress"),
    ("Welcome", "versions", (0,) * 513, "513 entries; allowed is 512"),
    ("Unwelcome", "reason", "r" * 65, "Unwelcome.reason"),
    ("Unwelcome", "text", "t" * 513, "Unwelcome.text"),
    ("HandbackRequest", "fragment", -1, "HandbackRequest.fragment"),
    ("Ack", "fragment", -1, "Ack.fragment"),
    ("Ack", "held", -1, "Ack.held"),
    ("Ack", "merged", BIG, "Ack.merged"),
    ("Refused", "seq", -1, "Refused.seq"),
    ("Refused", "reason", "r" * 65, "Refused.reason"),
    ("Refused", "text", "t" * 513, "Refused.text"),
    ("Call", "epoch", Epoch(-1, 0), "Call holds the epoch"),
    ("Call", "fragment", -1, "Call.fragment"),
    ("Call", "version", 0, "Call.version is 0; allowed is 1 to"),
    ("Update", "fragment", -1, "Update.fragment"),
    ("Update", "value_bytes", -1, "Update.value_bytes"),
    ("Update", "codec", "c" * 65, "Update.codec"),
    ("Update", "stamp", Stamp(Epoch(-1, 0), 1), "Update holds the epoch"),
    ("Update", "value_digest", 2**64, "Update.value_digest"),
    ("Update", "base", Stamp(Epoch(-1, 0), 1), "Update holds the epoch"),
    ("Update", "base", Stamp(EPOCH, 1), "Update.base is .*: allowed is a state before"),
    ("Beat", "epoch", Epoch(-1, 0), "Beat holds the epoch"),
    ("Beat", "open_rounds", ((0, 1),) * 513, "Beat.open_rounds has 513 entries"),
    ("Beat", "versions", (0,) * 513, "Beat.versions has 513 entries"),
    ("Beat", "stable", (0,) * 513, "Beat.stable has 513 entries"),
    ("Beat", "progress", -0.1, "Beat.progress"),
    ("Farewell", "epoch", Epoch(-1, 0), "Farewell holds the epoch"),
    ("Farewell", "reason", "r" * 513, "Farewell.reason"),
    ("Borrow", "fragment", 512, "Borrow.fragment"),
    ("Borrow", "kind", "k" * 65, "Borrow.kind"),
    ("Borrow", "stamp", Stamp(Epoch(-1, 0), 1), "Borrow holds the epoch"),
    ("Lend", "fragment", -1, "Lend.fragment"),
    ("Lend", "number", -1, "Lend.number"),
    ("Lend", "kind", "k" * 65, "Lend.kind"),
    ("Loan", "fragment", -1, "Loan.fragment"),
    ("Loan", "number", BIG, "Loan.number"),
    ("Loan", "kind", "k" * 65, "Loan.kind"),
    ("Loan", "codec", "c" * 65, "Loan.codec"),
    ("Loan", "stamp", Stamp(EPOCH, -2), "Loan holds version"),
    ("LoanOver", "fragment", -1, "LoanOver.fragment"),
    ("LoanOver", "number", -1, "LoanOver.number"),
    ("LoanOver", "reason", "r" * 513, "LoanOver.reason"),
]


@pytest.mark.parametrize(("kind", "field", "value", "fault"), BAD, ids=[f"{b[0]}.{b[1]}" for b in BAD])
def test_what_is_out_of_bounds_is_named(kind: str, field: str, value: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault.replace("(", r"\(")):
        dataclasses.replace(BY_NAME[kind], **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transfer", "t" * 129),
        ("nbytes", -1),
        ("nbytes", BIG),
        ("chunk_bytes", 0),
        ("chunk_bytes", 2**23 + 1),
        ("digest", 2**64),
    ],
)
def test_a_body_is_bounded_too(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"Body.{field}"):
        dataclasses.replace(BODY, **{field: value})


def test_every_kind_is_a_message_and_has_a_sample() -> None:
    """A class that is forgotten in `Message` would be one that nobody can send."""
    classes = {c for c in vars(w).values() if isinstance(c, type) and dataclasses.is_dataclass(c)} - {w.Body}
    assert set(typing.get_args(w.Message)) == classes
    assert {type(message) for message in MESSAGES} == classes
    assert len(MESSAGES) == len(classes)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_frozen_values_by_keyword(message: w.Message) -> None:
    assert message == dataclasses.replace(message)
    assert hash(message) == hash(dataclasses.replace(message))
    for field in dataclasses.fields(message):
        assert field.kw_only
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, field.name, 1)


def test_the_bounds_themselves_are_allowed() -> None:
    edge = Stamp(Epoch(bounds.MAX_EPOCH, 2**64 - 1), bounds.MAX_COUNT)
    made = w.Hello(name="n" * 64, incarnation=2**64 - 1, run_id="r" * 64, epoch=edge.epoch, stamps=(edge,) * 512)
    assert len(made.stamps) == 512
    assert w.Report(step=bounds.MAX_COUNT, trained_tokens=0, unmerged_tokens=0, dropped_tokens=0).step == 2**53


@given(st.one_of(st.integers(), st.floats()))
def test_a_range_is_closed_and_holds_no_nan(value: float) -> None:
    owner = dataclasses.make_dataclass("Owner", ["field"])(value)
    if 0 <= value <= 7:
        bounds.check_range(owner, field=(0, 7))
    else:
        with pytest.raises(ValueError, match=r"Owner.field is .*; allowed is 0 to 7"):
            bounds.check_range(owner, field=(0, 7))
