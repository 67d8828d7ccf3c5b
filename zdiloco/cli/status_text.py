"""The answer to a status query, as text for people: the run, its fragments, its learners.

Rule: only what the syncer said; an unknown figure is a dash.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from zdiloco.cli.columns import table
from zdiloco.cli.limits_text import limits_lines
from zdiloco.errors import MalformedFrame

WITHOUT_VALUES = {
    "empty": "empty: waiting for the first learner, whose values begin the run",
    "recovering": "recovering: reading the checkpoint, asking the fleet",
    "sealing": "sealing: writing the first checkpoint of its epoch",
}
"""Phases in which the syncer's counts say nothing yet: shown in their place."""


def status_text(answer: Mapping[str, Any]) -> str:
    """Return the lines, without an end of line at the end. Raises MalformedFrame for what no syncer answers."""
    try:
        text = _text(answer)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MalformedFrame(f"the answer is not the status of a syncer of this version ({error!r})") from error
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in text.split("\n"))


def _text(answer: Mapping[str, Any]) -> str:
    parts = [*_head(answer), "", *_fragments(answer["fragments"]), "", *_learners(answer["learners"])]
    if answer["phase"] in WITHOUT_VALUES:
        parts = [f"run {answer['run_id']}, {WITHOUT_VALUES[answer['phase']]}", *_warnings(answer)]
    return "\n".join(line.rstrip() for line in parts)


def _head(answer: Mapping[str, Any]) -> list[str]:
    target = answer["target_tokens"]
    share = f" ({answer['progress']:.1%} of {target:,})" if target else ""
    lines = [
        f"run {answer['run_id']}, epoch {answer['epoch']}, {answer['phase']}",
        f"merged {answer['merged_tokens']:,.0f} tokens{share}; since this syncer started {answer['rounds']:,} rounds "
        f"of {answer['mean_participants']:.2f} learners on average",
        f"{answer['live']} live, quorum {answer['quorum']}, at most {answer['max_open_rounds']} open rounds",
        *_adapted(answer.get("adaptive")),
        *([f"WAITS: {answer['waits']}"] if answer["waits"] else []),
        *_waiting(answer["node"].get("pulls")),
        f"ledger of the processes since this syncer started: {_ledger(answer['ledger'])}",
    ]
    return [*lines, *_warnings(answer)]


def _adapted(adaptive: Mapping[str, Any] | None) -> list[str]:
    if not adaptive:
        return []
    period, quorum, share = (adaptive[key] for key in ("sync_period", "min_quorum", "grace_share"))
    return [f"adaptive: H {period}, K up to {quorum}, grace at least {share:.0%} of the slack ({adaptive['why']})"]


def _waiting(pulls: Mapping[str, int] | None) -> list[str]:
    """Who waits for whole values; older syncers do not tell."""
    if not pulls or not pulls["waiting"]:
        return []
    return [f"whole values: {pulls['moving']} being served, {pulls['waiting']} wait for their turn"]


def _ledger(terms: Mapping[str, float | None]) -> str:
    """All terms but what is merged, which is of the whole run and stands above."""
    return ", ".join(f"{word} {_tokens(value)}" for word, value in terms.items() if word != "merged")


def _warnings(answer: Mapping[str, Any]) -> list[str]:
    lines = limits_lines(answer["node"].get("limits"))
    if answer["node"]["insecure"]:
        lines.append("INSECURE: this syncer listens without keys beyond loopback; anybody may join")
    return lines


def _fragments(fragments: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [("fragment", "version", "stable", "held", "round", "why")]
    for each in fragments:
        stable = "-" if each["stable"] is None else str(each["stable"])
        state = each["round"]["state"] if each["round"] else "-"
        rows.append((str(each["fragment"]), str(each["version"]), stable, str(each["held"]), state, each["why"]))
    return table(rows)


def _learners(learners: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = ("state", "steps", "steps/s", "staleness", "rounds", "codec", "merged tokens", "last seen", "why")
    somewhere = any(each.get("region") for each in learners)
    rows: list[tuple[str, ...]] = [("learner", *(["region"] if somewhere else []), *heads)]
    for each in learners:
        staleness = "-" if each["staleness"] is None else f"{each['staleness']:.2f}"
        rows.append(
            (
                each["name"],
                *([each.get("region") or "-"] if somewhere else []),
                each["state"],
                f"{each['step']:,}",
                f"{each['steps_per_s']:.2f}",
                staleness,
                f"{each['rounds']:,}",
                each.get("codec") or "-",
                _tokens(each["merged_tokens"]),
                f"{each['last_seen_s']:.1f} s ago",
                "; ".join(text for text in (each["why"], each["behind"], _pulls(each), _changed(each)) if text),
            )
        )
    return table(rows)


def _pulls(each: Mapping[str, Any]) -> str:
    """What is not ordinary of a downlink: who is only loading does not listen yet. Older syncers do not tell."""
    pulls = each["state"] == "live" and not each.get("listening", True)
    return "pulls: its downlink does not carry the broadcast" if pulls else ""


def _changed(each: Mapping[str, Any]) -> str:
    """Why its codec is no longer the one it began with. Older syncers do not tell."""
    why = each.get("codec_why")
    return f"codec changed: {why}" if why else ""


def _tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
