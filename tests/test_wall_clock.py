"""Wall time decides nothing of a run: it is written down and shown for people, and read nowhere else (D-69); but the
day on which a key expires is one that somebody has written down."""

import ast

from tests.test_house import ROOT, sources

FOR_PEOPLE = {
    "zdiloco/node/syncer.py": 1, "zdiloco/demo/learner_log.py": 1,  # in the header of a journal, and of a log
    "zdiloco/doctor/clock.py": 1, "zdiloco/node/about.py": 1,  # of two machines, to be compared for people
    "zdiloco/node/allowed.py": 1, "zdiloco/node/guard.py": 1,  # the last day of a key, which is a day of people
    "zdiloco/node/invited.py": 1, "zdiloco/cli/invite.py": 1,  # and of an invitation
    "zdiloco/cli/logs.py": 2, "zdiloco/cli/checkpoint.py": 2,  # before a log line, and beside a file
}  # fmt: skip
"""Where wall time is written down or shown, and how often it is named there."""
OF_TIME = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"}


def wall_times(tree: ast.Module) -> list[int]:
    """The lines that ask the wall clock, or import what can."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [node.lineno] if node.value.id == "time" and node.attr in OF_TIME else []
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            names = {alias.name for alias in node.names}
            found += [node.lineno] if node.module == "datetime" or names & OF_TIME else []
        elif isinstance(node, ast.Import):
            found += [node.lineno for alias in node.names if alias.name == "datetime"]
    return found


def test_wall_time_is_read_for_people_only() -> None:
    asking = [(place, tree) for place, text, tree in sources(ROOT, "zdiloco") if "time" in text]
    assert {place: len(lines) for place, tree in asking if (lines := wall_times(tree))} == FOR_PEOPLE


def test_each_way_to_ask_is_seen() -> None:
    text = "import time\nfrom time import time_ns\nimport datetime\nfrom datetime import timezone\na = time.time()\n"
    assert sorted(wall_times(ast.parse(text))) == [2, 3, 4, 5]
    assert not wall_times(ast.parse("import time\nfrom time import monotonic\na = time.monotonic()\n"))
