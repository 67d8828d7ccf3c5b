"""What a syncer machine tells about itself: one map of plain values, the answer to a status query.

Rule: keys are the glossary's words, seconds and tokens are plain numbers, and every wait says for what.
"""

from typing import Any

from zdiloco.core.desk import FragmentDesk
from zdiloco.core.membership import Member, MemberState
from zdiloco.core.rounds import names
from zdiloco.core.syncer import SyncerMachine


def status(machine: SyncerMachine, now: float) -> dict[str, Any]:
    """The state of a run as the syncer sees it at `now`; nothing in it is shared with the machine."""
    desk = machine.desk
    return {
        "run_id": machine.run_id,
        "epoch": machine.epoch.counter,
        "phase": str(machine.phase),
        "progress": machine.progress,
        "target_tokens": machine.target_tokens,
        "merged_tokens": machine.merged_tokens,
        "rounds": machine.rounds,
        "contributions": machine.contributions,
        "mean_participants": machine.contributions / machine.rounds if machine.rounds else 0.0,
        "quorum": desk.quorum(),
        "live": len(machine.fleet.counted()),
        "waits": machine.waiting.why(),
        "max_open_rounds": desk.max_open() if desk.fragments else 0,
        "sync_period": desk.params.sync_period,
        "adaptive": _adaptive(machine),
        "averages_s": {
            "quorum": desk.quorum_s.value,
            "sync": desk.sync_s.value,
            "round": desk.round_s.value,
        },
        "fragments": [_fragment(machine, fragment, now) for fragment in desk],
        "learners": [_learner(machine, member, now) for member in sorted(machine.fleet, key=lambda member: member.key)],
        "refused": {str(reason): count for reason, count in machine.intakes.refused.items()},
        "remarks": {str(remark): count for remark, count in machine.intakes.remarks.items()},
        "thin_rounds": sum(fragment.turnout.thin for fragment in desk),
        "plain_rounds": sum(fragment.turnout.plain for fragment in desk),
        "late": machine.intakes.late,
        "replaced": machine.intakes.replaced,
        "loans": machine.loans.status(),
        "bundles": machine.intakes.bundles.status(),
        "budget": {"used_bytes": machine.intakes.used_bytes, "bytes": machine.params.budget_bytes},
        "ledger": _ledger(machine),
    }


def _adaptive(machine: SyncerMachine) -> dict[str, Any] | None:
    """The H, K and grace that hold now, and why; None: they are those of the settings."""
    adaptive = machine.desk.adaptive
    if adaptive is None:
        return None
    return {
        "sync_period": adaptive.sync_period,
        "min_quorum": adaptive.min_quorum,
        "grace_share": adaptive.grace.share,
        "answered": adaptive.answered,
        "why": adaptive.why,
    }


def _fragment(machine: SyncerMachine, desk: FragmentDesk, now: float) -> dict[str, Any]:
    rnd = desk.round
    answer: dict[str, Any] = {
        "fragment": desk.index,
        "version": desk.stamp.version,
        "stable": desk.stable.version if desk.stable.epoch == machine.epoch else None,
        "held": len(desk.intake.held),
        "why": desk.why,
        "round": None,
    }
    if rnd is not None:
        ends = machine.desk.ends.get(desk.index)
        absent = machine.desk.attendance(desk).absent if rnd.gathering else frozenset()
        answer["round"] = {
            "version": rnd.version,
            "state": str(rnd.state),
            "why": rnd.why,
            "age_s": now - rnd.called_at,
            "in": sorted(key.name for key in rnd.fresh),
            "declined": {key.name: reason for key, reason in sorted(rnd.declined.items())},
            "missing": names(absent),
            "looks_again_in_s": None if ends is None else max(0.0, ends - now),
        }
    return answer


def _learner(machine: SyncerMachine, member: Member, now: float) -> dict[str, Any]:
    pace = member.pace.value
    return {
        "name": member.key.name,
        "incarnation": f"{member.key.incarnation:016x}",
        "region": member.region,
        "state": str(member.state),
        "why": member.why,
        "behind": machine.haste.behind.get(member.key, ""),
        "listening": member.listening,
        "step": member.step,
        "steps_per_s": 1 / pace if pace else 0.0,
        "answer_s": member.answer.value,
        "staleness": member.staleness.value,
        "rounds": member.rounds,
        "codec": member.codec,
        "codec_why": member.codec_why,
        "trained_tokens": member.trained_tokens,
        "merged_tokens": member.merged_tokens,
        "unmerged_tokens": member.unmerged_tokens,
        "last_seen_s": now - member.heard_at,
        "refused": {str(reason): count for reason, count in member.refused.items()},
        "remarks": {str(remark): count for remark, count in member.remarks.items()},
    }


def _ledger(machine: SyncerMachine) -> dict[str, Any]:
    """The books as processes have reported them since this syncer started; what a dead one lost only its file tells."""
    members = list(machine.fleet)
    living = [member for member in members if member.state is not MemberState.GONE]
    return {
        "trained": machine.fleet.past_tokens + sum(member.trained_tokens for member in members),
        "merged": machine.merged_tokens,
        "unmerged": sum(member.unmerged_tokens for member in living),
        "lost": None,
        "dropped": sum(member.dropped_tokens for member in members),
        "left": sum(member.left_tokens for member in members),
    }
