"""The units under a real systemd, which is the first process of a virtual machine of software."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.systemd.test_units import MOST_EXPOSED
from tests.wan.vm.machine import Kernel, machine
from tests.wan.vm.services_inside import WATCHDOG_S

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.wan, pytest.mark.slow, pytest.mark.timeout(1800)]
LIMIT_S = 1500.0
"""It took 15 minutes on two cores at load 10: a start there is mostly the loading of torch."""
Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def told(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What the machine has told, by case."""
    folder = tmp_path_factory.mktemp("services") / "machine"
    with machine(kernel, "tests.wan.vm.services_inside", folder, systemd=True) as made:
        made.wait(LIMIT_S)
        return {case: lines[0] for case, lines in made.told().items()}


def test_the_script_installs_what_systemd_reads(told: Told) -> None:
    """User, folders, kernel settings, and units; keys that root has made become the services'."""
    line = told["installs"]
    assert line["said"][-1].startswith("next: ")
    assert line["owners"] == [line["user"], 0]
    assert set(line["loaded"].values()) == {"loaded"}
    assert line["idle"] == "0"
    assert told["settings"]["secret"] == [line["user"], 0o600]


def test_a_start_returns_when_the_service_is_ready(told: Told, say: Callable[[str], None]) -> None:
    """The learner was started first, dials a name, and is ready when it has joined; both are shut off, and merge."""
    line = told["starts"]
    say(f"systemctl start took {line['syncer_s']:.0f} s (syncer), {line['learner_s']:.0f} s (learner)")
    say(f"systemd-analyze security: {', '.join(f'{name} {each}' for name, each in line['exposed'].items())}")
    assert max(line["exposed"].values()) <= MOST_EXPOSED
    assert line["version"] >= 1
    assert line["learner_s"] > line["syncer_s"]
    syncer, learner = line["states"].values()
    assert " 1 learners live" in syncer["StatusText"]
    assert learner["StatusText"].startswith("training, step ")
    for state in (syncer, learner, told["relays"]["up"]):
        assert (state["ActiveState"], state["SubState"], state["NRestarts"]) == ("active", "running", "0")
        assert {*state["Uid"].split()} == {str(told["installs"]["user"])}
        assert int(state["CapEff"], 16) == int(state["CapBnd"], 16) == 0
        assert (state["NoNewPrivs"], state["Seccomp"]) == ("1", "2")


def test_a_syncer_that_is_killed_comes_back(told: Told, say: Callable[[str], None]) -> None:
    line = told["killed"]
    say(f"kill -9: ready after {line['ready_s']:.0f} s, a round merged after {line['merged_s']:.0f} s")
    assert "status=9/KILL" in "".join(line["said"])
    assert line["epoch"] > line["before"]
    assert line["version"] > told["starts"]["version"]
    assert line["learner_stayed"]


def test_a_syncer_that_hangs_is_ended_by_the_watchdog(told: Told, say: Callable[[str], None]) -> None:
    """systemd takes what stands still for hung; the journal says where each thread stood."""
    line = told["hangs"]
    say(f"watchdog of {WATCHDOG_S} s: ready after {line['ready_s']:.0f} s, merged after {line['merged_s']:.0f} s")
    said = "\n".join(line["said"])
    assert "Watchdog timeout" in said
    assert "Failed with result 'watchdog'" in said
    assert line["ready_s"] > WATCHDOG_S / 2
    assert "Fatal Python error: Aborted" in line["stacks"]
    assert any("most recent call first" in each for each in line["stacks"])
    assert line["epoch"] > line["before"]


def test_a_reload_reads_the_list_anew(told: Told, say: Callable[[str], None]) -> None:
    """Who is taken out is out, with code 2, and is not started again; who is put back may come."""
    line = told["reloads"]
    say(f"systemctl reload took {line['seconds'][0]:.1f} and {line['seconds'][1]:.1f} s")
    assert [text.partition("gone=")[2] for text in line["read"]] == ["a", "-"]
    assert line["syncer"]["SubState"] == "running"
    learner = line["learner"]
    assert (learner["Result"], learner["ExecMainStatus"], learner["NRestarts"]) == ("exit-code", "2", "0")
    assert [text for text in line["errors"] if "does not let this key in" in text]
    learner = told["upgrades"]["learner"]
    assert (learner["SubState"], learner["NRestarts"]) == ("running", "0"), learner["said"]


def test_an_upgrade_goes_on_where_the_run_was(told: Told, say: Callable[[str], None]) -> None:
    line = told["upgrades"]
    say(f"systemctl restart took {line['restart_s']:.0f} s")
    assert "keep    /etc/zdiloco/run.toml" in line["said"]
    assert line["epoch"] > line["before"]["epoch"]
    assert line["version"] > line["before"]["version"]


def test_a_relay_starts_reports_and_ends(told: Told) -> None:
    line = told["relays"]
    assert "learners" in line["status"]
    assert (line["down"]["ActiveState"], line["down"]["Result"]) == ("inactive", "success")


def test_wrong_settings_are_not_tried_again(told: Told) -> None:
    """A key that nobody knows: one start, and the journal says which."""
    line = told["mistakes"]
    assert line["code"] != 0
    state = line["state"]
    assert (state["ActiveState"], state["Result"], state["ExecMainStatus"]) == ("failed", "exit-code", "2")
    assert state["NRestarts"] == "0"
    assert [text for text in line["errors"] if text.startswith("zdiloco: ") and "sync_perid" in text]


def test_the_journal_knows_what_matters(told: Told) -> None:
    """Errors are errors; no line brings a clock or the mark of its priority along."""
    line = told["journals"]
    assert line["odd"] == []
    for name, priorities in line["priorities"].items():
        assert 6 in priorities, name
        assert {*priorities} <= {3, 4, 6}, name


def test_what_was_installed_is_taken_away(told: Told) -> None:
    """The services are ended in order; settings, keys and run stay."""
    line = told["leaves"]
    assert set(line["loaded"].values()) == {"not-found"}
    assert line["alive"] == line["enabled"] == line["failed"] == []
    assert line["kept"] == ["/etc/zdiloco/run.toml", "/etc/zdiloco/keys/a.key_secret", "/var/lib/zdiloco/run"]
