"""What happens in the virtual machine whose first process is systemd: the units as `bin/install-service` installs them.

The checkout and its Python are put where services can see them: `/opt/zdiloco` with its `.venv`, and `/opt/python`.
Syncer and relay are in one network namespace, the learner in another, over CURVE. Drop-ins of the test say only where
the namespaces and the Python's library are, and shorten the watchdog of the syncer. Each case is a line of JSON; what
never comes ends the program, and the journals are told.
"""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.net.namespaces import Regions
from tests.wan.vm.told import write
from zdiloco.errors import LinkError
from zdiloco.node.keys import load_public, make_pair
from zdiloco.node.params import NetParams
from zdiloco.node.query import Query

ROOT = Path(__file__).parent.parent.parent.parent
HOME, PYTHON = Path("/opt/zdiloco"), Path("/opt/python")
SETTINGS, STATE, UNITS = Path("/etc/zdiloco"), Path("/var/lib/zdiloco"), Path("/etc/systemd/system")
KEYS, TEXTS = SETTINGS / "keys", Path("/srv/texts")
COMMAND = HOME / ".venv/bin/zdiloco"
NEAR = "10.77.1.1"
LIMIT_S = 400.0
"""For whatever the machine may make slow, such as loading torch: 35 s where nothing else runs."""
WATCHDOG_S = 30
SETTINGS_TEXT = f"""
[run]
dir = "run"
[sync]
sync_period = 2
num_fragments = 1
report_every_s = 0.5
suspect_after_s = 10.0
gone_after_s = 20.0
recover_wait_s = 2.0
checkpoint_every_s = 5.0
drain_s = 5.0
[learner]
silent_after_s = 10.0
answer_timeout_s = 8.0
[task]
context = 16
batch_size = 1
data_dir = "{TEXTS}"
min_data_bytes = 1000
num_shards = 1
validation_batches = 1
[net]
listen = "{NEAR}"
connect = "{NEAR}"
keys = "{KEYS}"
stall_s = 4.0
[relay]
listen = "{NEAR}"
"""
RIGHTS = {"a": "", "watcher": 'rights = ["watch"]\n', "relay": 'rights = ["relay"]\nnames = ["*"]\n'}


def run(*words: str | Path) -> str:
    """What a command says, which must end with 0."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.returncode} {done.stdout}{done.stderr}"
    return done.stdout


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds, and return what it said."""
    ends, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not (found := condition()):
        assert time.monotonic() < ends, f"never came: {what}"
        pause.wait(0.5)
    return found


class Unit:
    """A service, as systemd shows it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, verb: str) -> float:
        """Have systemctl do this to it; returns the seconds that it took."""
        began = time.monotonic()
        run("systemctl", verb, self.name)
        return time.monotonic() - began

    def show(self, *names: str) -> dict[str, str]:
        """Properties by name."""
        lines = run("systemctl", "show", self.name, *(f"--property={name}" for name in names)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def state(self) -> dict[str, str]:
        """How it is, and how its last process ended."""
        return self.show("ActiveState", "SubState", "Result", "NRestarts", "ExecMainStatus", "StatusText")

    @property
    def pid(self) -> int:
        return int(self.show("MainPID")["MainPID"])

    def is_up(self, restarts: int) -> bool:
        """Whether it is ready, after so many restarts by systemd."""
        told = self.show("ActiveState", "SubState", "NRestarts")
        return (told["SubState"], int(told["NRestarts"])) == ("running", restarts)

    def lines(self) -> list[tuple[int, str]]:
        """What its processes have said: priority and text."""
        found = []
        for line in run("journalctl", "--unit", self.name, "--output=json", "--no-pager").splitlines():
            each = json.loads(line)
            if each.get("_TRANSPORT") == "stdout":
                found.append((int(each["PRIORITY"]), str(each["MESSAGE"])))
        return found

    def of_systemd(self) -> list[str]:
        """What systemd has said of it."""
        told = run("journalctl", "_PID=1", f"UNIT={self.name}.service", "--output=cat", "--no-pager")
        return told.splitlines()

    def process(self) -> dict[str, str]:
        """What the kernel says of its process."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return {name: told[name] for name in ("Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}


SYNC, LEARNER, RELAY = Unit("zdiloco-sync"), Unit("zdiloco-learner@a"), Unit("zdiloco-relay")


def exposure(unit: Unit) -> float:
    """What systemd thinks of a loaded unit: 0 is shut off, 10 wide open."""
    told = run("systemd-analyze", "security", "--no-pager", f"{unit.name}.service")
    (found,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", told)
    return float(found)


# ---- what there is before anything starts


def lay_out() -> None:
    """Have the checkout, its environment and its Python at places that services see."""
    for here, there in ((ROOT, HOME), (Path(sys.prefix), HOME / ".venv"), (Path(sys.base_prefix), PYTHON)):
        there.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", here, there)
    environment = HOME / ".venv"
    for link in (environment / "bin").iterdir():
        if link.is_symlink() and (target := os.readlink(link)).startswith(sys.base_prefix):
            link.unlink()
            link.symlink_to(PYTHON / Path(target).relative_to(sys.base_prefix))
    replace(environment / "pyvenv.cfg", sys.base_prefix, str(PYTHON))
    replace(COMMAND, sys.prefix, str(environment))
    (packages,) = environment.glob("lib/python*/site-packages")
    for path in packages.glob("*.pth"):
        replace(path, sys.base_prefix, str(PYTHON))
    for path in packages.glob("__editable__*zdiloco*.pth"):
        path.write_text(f"{HOME}\n")
    TEXTS.mkdir(parents=True)
    for chapter in range(40):  # whole files are held out
        text = f"Chapter {chapter}. It was the best of times, it was the worst of times; nobody waited. "
        (TEXTS / f"{chapter}.txt").write_text(text * 20)


def replace(path: Path, old: str, new: str) -> None:
    """Change a text in a file."""
    path.write_text(path.read_text().replace(old, new))


def drop_in(unit: str, regions: Regions, region: int, more: str = "") -> None:
    """What `systemctl edit` would write."""
    folder = UNITS / f"{unit}.service.d"
    folder.mkdir()
    place = f"NetworkNamespacePath=/run/netns/{regions.names[region]}\nEnvironment=LD_LIBRARY_PATH={PYTHON}/lib\n"
    (folder / "test.conf").write_text(f"[Service]\n{place}{more}")


def allow(*names: str) -> None:
    """Write the list of those who may connect."""
    entries = [f'[{name}]\nkey = "{load_public(KEYS, name).decode()}"\n{RIGHTS[name]}' for name in names]
    (KEYS / "allowed.toml").write_text("".join(entries))
    (KEYS / "allowed.toml").chmod(0o644)


# ---- the cases


class Story:
    """The machine's services, one case after the other."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions

    def status(self) -> dict[str, Any]:
        """What the syncer answers to one who may watch; empty: nobody answers."""
        answers: list[dict[str, Any]] = []

        def ask() -> None:
            with suppress(LinkError), Query(NetParams(connect=NEAR, keys=str(KEYS)), name="watcher") as query:
                answers.append(query.ask(15.0))

        thread = threading.Thread(target=self.regions.inside(0, ask), name="asks")
        thread.start()
        thread.join(LIMIT_S)
        return answers[0] if answers else {}

    def merged(self, beyond: int) -> dict[str, int]:
        """Epoch, and the version of the fragment, once a round was merged in an epoch after this one."""

        def found() -> dict[str, int]:
            told = self.status()
            if not told or int(told["epoch"]) <= beyond or int(told["rounds"]) < 1:
                return {}
            return {"epoch": int(told["epoch"]), "version": int(told["fragments"][0]["version"])}

        answer: dict[str, int] = until(found, f"a round is merged after epoch {beyond}")
        return answer

    def installs(self) -> None:
        """The script, on a machine that has none of it."""
        told = run(HOME / "bin/install-service")
        user = pwd.getpwnam("zdiloco")
        write(
            "installs",
            said=told.splitlines(),
            user=user.pw_uid,
            owners=[STATE.stat().st_uid, KEYS.stat().st_uid],
            loaded={unit.name: unit.show("LoadState")["LoadState"] for unit in (SYNC, RELAY, LEARNER)},
            idle=Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle").read_text().strip(),
        )

    def settings(self) -> None:
        """Keys, their list, run.toml, and what is special to one; the learner dials a name."""
        for name in ("syncer", "a"):
            run(COMMAND, "keygen", KEYS, name)
        for name in ("watcher", "relay"):  # a command takes ten seconds to load
            make_pair(KEYS, name)
        allow(*RIGHTS)
        (SETTINGS / "run.toml").write_text(SETTINGS_TEXT)
        (SETTINGS / "learner-a.env").write_text("ARGUMENTS=--set net.connect=syncer.test --slowdown 4\n")
        with Path("/etc/hosts").open("a") as hosts:
            hosts.write(f"{NEAR} syncer.test\n")
        drop_in(SYNC.name, self.regions, 0, f"WatchdogSec={WATCHDOG_S}\n")
        drop_in(RELAY.name, self.regions, 0)
        drop_in("zdiloco-learner@", self.regions, 1)
        run("systemctl", "daemon-reload")
        run("systemctl", "enable", "--quiet", SYNC.name, "zdiloco-learner@never-started")
        run("systemd-tmpfiles", "--create", "zdiloco.conf")
        stat = (KEYS / "syncer.key_secret").stat()
        write("settings", secret=[stat.st_uid, stat.st_mode & 0o777])

    def starts(self) -> None:
        """Learner and syncer at once: `systemctl start` of both returns, and rounds are merged."""
        came: list[float] = []
        thread = threading.Thread(target=lambda: came.append(LEARNER("start")), name="starts")
        thread.start()
        syncer_s = SYNC("start")
        thread.join(LIMIT_S)
        assert came, "the learner never came up"
        merged = self.merged(0)
        until(lambda: " 1 learners live" in SYNC.state()["StatusText"], "the status line")
        states = {unit.name: {**unit.state(), **unit.process()} for unit in (SYNC, LEARNER)}
        exposed = {unit.name: exposure(unit) for unit in (SYNC, RELAY, LEARNER)}
        write("starts", syncer_s=syncer_s, learner_s=came[0], states=states, exposed=exposed, **merged)

    def killed(self) -> None:
        """kill -9 of the syncer: again, and the run goes on; the learner stays."""
        before, learner = self.status(), LEARNER.pid
        with self.back("killed", 1, before) as told:
            os.kill(SYNC.pid, signal.SIGKILL)
        write("killed", learner_stayed=LEARNER.pid == learner, **told)

    def hangs(self) -> None:
        """The syncer stands still: the watchdog ends it, the journal says where it stood."""
        with self.back("hangs", 2, self.status()) as told:
            os.kill(SYNC.pid, signal.SIGSTOP)
        said = [text for _, text in SYNC.lines()]
        write(
            "hangs",
            stacks=[text for text in said if "Fatal Python error" in text or "most recent call" in text],
            **told,
        )

    @contextmanager
    def back(self, what: str, restarts: int, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What is done within ends the syncer; it is there again, of itself, and a round was merged."""
        began, told, known = time.monotonic(), {}, len(SYNC.of_systemd())
        yield told
        until(lambda: SYNC.is_up(restarts), f"{what}: the syncer is there again")
        told["ready_s"] = time.monotonic() - began
        told |= self.merged(int(before["epoch"]))
        told["merged_s"] = time.monotonic() - began
        told |= {"before": before["epoch"], "said": SYNC.of_systemd()[known:]}

    def reloads(self) -> None:
        """The learner is taken out of the list, and is out; put back, it may come again."""
        allow("watcher", "relay")
        first_s = SYNC("reload")
        until(lambda: LEARNER.show("ActiveState")["ActiveState"] == "failed", "the learner is out")
        allow(*RIGHTS)
        second_s = SYNC("reload")
        write(
            "reloads",
            seconds=[first_s, second_s],
            read=[text for _, text in SYNC.lines() if "who may connect is read anew" in text],
            learner=LEARNER.state(),
            errors=[text for priority, text in LEARNER.lines() if priority == 3],
            syncer=SYNC.state(),
        )

    def upgrades(self) -> None:
        """Installed again and started again: the run goes on where it was, with the learner of before."""
        known = len(LEARNER.of_systemd())
        run("systemctl", "start", "--no-block", LEARNER.name)
        before = self.status()
        told = run(HOME / "bin/install-service").splitlines()
        restart_s = SYNC("restart")
        after = self.merged(int(before["epoch"]))
        until(lambda: LEARNER.show("SubState")["SubState"] == "running", "the learner is ready")
        was = {"epoch": before["epoch"], "version": before["fragments"][0]["version"]}
        learner = {**LEARNER.state(), "said": LEARNER.of_systemd()[known:]}
        write("upgrades", said=told, restart_s=restart_s, before=was, learner=learner, **after)

    def relays(self) -> None:
        """A relay beside the syncer starts, reports and ends."""
        start_s = RELAY("start")
        up = {**RELAY.state(), **RELAY.process()}
        until(lambda: RELAY.state()["StatusText"], "the relay's status line")
        status = RELAY.state()["StatusText"]
        stop_s = RELAY("stop")
        write("relays", start_s=start_s, stop_s=stop_s, up=up, status=status, down=RELAY.state())

    def mistakes(self) -> None:
        """A key that does not exist: failed after one start."""
        replace(SETTINGS / "run.toml", "sync_period", "sync_perid")
        done = subprocess.run(["systemctl", "restart", SYNC.name], capture_output=True, text=True, check=False)
        state = SYNC.state()
        replace(SETTINGS / "run.toml", "sync_perid", "sync_period")
        errors = [text for priority, text in SYNC.lines() if priority == 3]
        write("mistakes", code=done.returncode, state=state, errors=errors)

    def leaves(self) -> None:
        """All is taken away but what is the user's."""
        journals = {unit.name: unit.lines() for unit in (SYNC, LEARNER, RELAY)}
        priorities = {name: sorted({p for p, _ in lines}) for name, lines in journals.items()}
        worst = {name: [each for each in lines if each[0] < 6] for name, lines in journals.items()}
        odd = [text for lines in journals.values() for _, text in lines if re.match(r"<\d>|\d\d:\d\d:\d\d ", text)]
        write("journals", priorities=priorities, worst=worst, odd=odd)
        began = time.monotonic()
        told = run(HOME / "bin/install-service", "--uninstall").splitlines()
        took_s = time.monotonic() - began
        run(HOME / "bin/install-service", "--uninstall")  # a second one has nothing to do
        places = (SETTINGS / "run.toml", KEYS / "a.key_secret", STATE / "run")
        write(
            "leaves",
            said=told,
            seconds=took_s,
            loaded={unit.name: unit.show("LoadState")["LoadState"] for unit in (SYNC, RELAY, LEARNER)},
            failed=run("systemctl", "list-units", "--failed", "--plain", "--no-legend").split(),
            enabled=[path.name for path in UNITS.glob("*.wants/zdiloco*")],
            alive=[path.name for path in Path("/proc").glob("[0-9]*") if path.owner() == "zdiloco"],
            kept=[str(path) for path in places if path.exists()],
            learner=LEARNER.of_systemd()[-3:],
        )


def main() -> int:
    """Play all cases; returns the exit code."""
    lay_out()
    regions = Regions(2)
    story = Story(regions)
    try:
        for case in ("installs", "settings", "starts", "killed", "hangs", "reloads", "upgrades", "relays", "mistakes"):
            began = time.monotonic()
            getattr(story, case)()
            print(f"{case}: {time.monotonic() - began:.0f} s", flush=True)
        story.leaves()
    except BaseException:
        print(run("journalctl", "--boot", "--no-pager", "--lines=80", "--output=short-monotonic"), flush=True)
        raise
    finally:
        regions.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
