"""What a doctor has found, as text for people."""

from collections.abc import Sequence

from zdiloco.cli.columns import table
from zdiloco.doctor.finding import Finding, Verdict

COUNTED = {Verdict.FAIL: "will fail", Verdict.WARN: "to be looked at", Verdict.UNKNOWN: "not known", Verdict.OK: "good"}


def doctor_text(findings: Sequence[Finding]) -> str:
    """The lines: a row a finding, each thing that is to be done, once, and how many there are of each kind."""
    rows = [[finding.verdict.upper(), finding.check, finding.side, finding.measured] for finding in findings]
    lines = [line.rstrip() for line in table(rows)]
    told: set[str] = set()
    for finding in findings:
        if finding.fix and finding.fix not in told:
            told.add(finding.fix)
            lines += ["", f"{finding.verdict.upper()} {finding.check} ({finding.side}): {finding.measured}",
                      f"  {finding.why}", f"  mend it: {finding.fix}"]  # fmt: skip
    counts = {verdict: sum(finding.verdict is verdict for finding in findings) for verdict in COUNTED}
    lines += ["", ", ".join(f"{count} {COUNTED[verdict]}" for verdict, count in counts.items() if count)]
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)
