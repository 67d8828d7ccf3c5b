"""Small valid values for the tests of the pure core: one message of every kind, members, contributions.

Rule: what a test does not name does not matter to it.
"""

from typing import Any

from zdiloco.core import messages as w
from zdiloco.core.machine import Fetch, Send
from zdiloco.core.membership import Member, MemberState
from zdiloco.core.params import SyncParams
from zdiloco.core.progress import Held
from zdiloco.units import ContributionId, Epoch, MemberKey, Stamp

ANN, BOB, EVE = MemberKey("ann", 11), MemberKey("bob", 12), MemberKey("eve", 13)
EPOCH, NEXT_EPOCH = Epoch(1, 500), Epoch(2, 400)
BODY = w.Body(transfer="c/0/1", nbytes=1000, chunk_bytes=1 << 20, digest=5)
FAST = SyncParams(sync_period=8, report_every_s=0.5)
"""H = 8, and steps are extrapolated for one second."""


def hello(key: MemberKey, stamps: tuple[Stamp, ...] = (), **other: Any) -> w.Hello:
    """What this process says first."""
    return w.Hello(name=key.name, incarnation=key.incarnation, stamps=stamps, **other)


def messages(actions: list) -> list:
    """Of whom each message is that is sent or fetched, and its class."""
    return [(a.key, type(a.message).__name__) for a in actions if isinstance(a, Send | Fetch)]


def contribution(seq: int = 1, after: int = 0, epoch: Epoch = EPOCH, **other: Any) -> w.Contribution:
    """A contribution of 10 steps and 100 tokens; `other` overrides any field."""
    fields: dict[str, Any] = {
        "fragment": 0, "seq": seq, "after": after, "stamp": Stamp(epoch, 0), "steps": 10, "tokens": 100,
        "cut_step": 10, "version": 1, "codec": "bf16", "body": BODY,
    }  # fmt: skip
    return w.Contribution(**{**fields, **other})


def held(key: MemberKey, message: w.Contribution, at: float = 0.0) -> Held:
    """The same contribution, as it is held for `key`."""
    handle = ContributionId(key.name, key.incarnation, message.fragment, message.seq)
    return Held(id=handle, message=message, arrived_at=at, norm=1.0)


def member(key: MemberKey = ANN, step: int = 0, at: float = 0.0, pace: float | None = None, **other: Any) -> Member:
    """A live member at inner step `step`, told of at `at`, that counts from step 0."""
    made = Member(key=key, order=1, state=MemberState.LIVE, heard_at=at, step=step, step_at=at, first_step=0, **other)
    made.pace.value = pace
    return made


MESSAGES: tuple[w.Message, ...] = (
    w.Hello(name="ann", incarnation=11),
    w.Report(step=3, trained_tokens=30, unmerged_tokens=3.5, dropped_tokens=0.0),
    w.Heartbeat(epoch=EPOCH),
    contribution(),
    w.Decline(fragment=0, version=1, reason="uplink busy", eta_s=0.5),
    w.Pull(fragment=0),
    w.LayoutOffer(digest="layout", body=BODY),
    w.InitialOffer(fragment=0, body=BODY),
    w.Handback(fragment=0, stamp=Stamp(EPOCH, 3), codec="fp32", value_bytes=900, body=BODY),
    w.Goodbye(reason="done", trained_tokens=90, left_tokens=1.5, dropped_tokens=0.0),
    w.StatusQuery(),
    w.Welcome(epoch=EPOCH, run_id="run", order=1, versions=(0, 0), progress=0.5),
    w.Unwelcome(reason="unknown", text="say hello again", fatal=False),
    w.Donate(),
    w.HandbackRequest(fragment=0),
    w.Ack(fragment=0, held=0, merged=1, remark="clipped", text="its norm is 9"),
    w.Refused(fragment=0, seq=1, reason="after", text="cut again"),
    w.Call(epoch=EPOCH, fragment=0, version=1),
    w.Update(fragment=0, stamp=Stamp(EPOCH, 1), full=False, codec="bf16", value_bytes=900, body=BODY),
    w.Beat(epoch=EPOCH, open_rounds=((0, 1),), versions=(0, 0), stable=(0, -1), progress=0.5),
    w.Farewell(epoch=EPOCH, finished=True, reason="the target is reached"),
    w.Status(body=BODY),
    w.Borrow(fragment=0, kind="AdamW", stamp=Stamp(EPOCH, 1)),
    w.Lend(fragment=0, number=1, kind="AdamW"),
    w.Loan(fragment=0, number=1, kind="AdamW", stamp=Stamp(EPOCH, 1), codec="bf16", body=BODY),
    w.LoanOver(fragment=0, number=1, reason="taken"),
    w.Receipt(),
    w.Bundle(
        fragment=0, number=1, method="rda", codec="fp32", body=BODY,
        members=(w.Bundled("ann", 11, 1, 0, 10, 100, 1.0, 1000.0),),
    ),
    w.Unbundled(fragment=0, number=1, reason="member", text="no bytes are awaited of ann"),
)  # fmt: skip
"""One valid message of every kind."""
