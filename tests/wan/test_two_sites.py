"""docs/two-sites.md is typed as it stands, on two machines: namespaces with roots, processes and networks of their own.

Rule: only what fetches (apt-get, git clone) and what copies between machines (scp) is done by the test. After each
section it waits for what the page says follows, and with a limit for each wait.
"""

import dataclasses
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wan.machines import ROOT, Machine, join
from zdiloco.wanlab.namespaces import why_not

PAGE = ROOT / "docs" / "two-sites.md"
ADDRESSES = {"alpha": "192.0.2.1", "beta": "192.0.2.2"}
ENDPOINT = "192.0.2.1:5700"
WAIT_S = 240.0
EMPTY = "\0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """What is typed on one machine (or both), and below which heading it stands."""

    section: str
    machine: str
    stays: bool
    text: str


def blocks(page: str) -> list[Block]:
    """Every block of the page, in its order. Raises ValueError for one that says no machine."""
    found, section, before = [], "", ""
    for part in re.split(r"\n\n+(?=\S)", re.sub(r"(?s)^```sh\n.*?^```", _closed, page, flags=re.M)):
        if part.startswith("## "):
            section = part[3:].strip()
        elif part.startswith("```sh\n"):
            said = re.findall(r"[Oo]n \*\*(\w+)\*\*", before)
            if len(said) != 1 or said[0] not in ("both", *ADDRESSES):
                raise ValueError(f"{section}: on which machine? {before[:200]}")
            stays = "terminal of its own" in before.replace("\n", " ")
            text = part.strip().removeprefix("```sh\n").removesuffix("```").replace(EMPTY, "")
            found.append(Block(section=section, machine=said[0], stays=stays, text=text))
        before = part
    return found


def _closed(block: re.Match[str]) -> str:
    """A block without empty lines, so that paragraphs can be told apart."""
    return re.sub(r"(?m)^$", EMPTY, block[0])


def test_blocks_are_found_with_their_machine() -> None:
    page = "## A\n\nSay. On **beta**, in a terminal\nof its own:\n\n```sh\nx\n```\n\nOn **both**:\n\n```sh\ny\nz\n```\n"
    assert blocks(page) == [
        Block(section="A", machine="beta", stays=True, text="x\n"),
        Block(section="A", machine="both", stays=False, text="y\nz\n"),
    ]
    with pytest.raises(ValueError, match="on which machine"):
        blocks("## A\n\nSomewhere:\n\n```sh\nx\n```\n")
    text = PAGE.read_text()
    assert len(blocks(text)) == text.count("```sh")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """Both machines, joined; in CI they must be had."""
    reason = why_not(f"zdiloco-{os.getpid()}-98")
    if reason:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    made: dict[str, Machine] = {}
    try:
        for name in ADDRESSES:
            made[name] = Machine(name, tmp_path / name)
        join(made["alpha"], made["beta"], (ADDRESSES["alpha"], ADDRESSES["beta"]))
        yield made
    finally:
        for machine in made.values():
            machine.close()


class Reader:
    """Somebody who types the page, section by section."""

    def __init__(self, sites: dict[str, Machine], folder: Path) -> None:
        self.sites = sites
        self.folder = folder
        self.blocks = blocks(PAGE.read_text())
        self.left = list(self.blocks)
        self.terminals: dict[str, subprocess.Popen[str]] = {}

    def section(self, name: str) -> str:
        """Type all blocks of a section; return what was said."""
        mine = [block for block in self.blocks if block.section == name]
        assert mine, f"the page has no section {name}"
        return "".join(self.block(block) for block in mine)

    def block(self, block: Block) -> str:
        """Type one block; return what was said."""
        self.left.remove(block)
        said = ""
        for name in ADDRESSES if block.machine == "both" else (block.machine,):
            if block.stays:
                self._stay(name, block.text.strip())
            else:
                said += self._type(name, block)
            if "pkill -TERM" in block.text:
                self.ends(f"{name}: {block.text.split()[-1].strip(chr(39))}")
        return said

    def _stay(self, name: str, command: str) -> None:
        key = f"{name}: {'--join' if '--join' in command else command.split()[1]}"
        if key in self.terminals:
            self.ends(key)
        log = self.folder / f"{key.replace(': ', '-')}-{len(self.sites[name].terminals)}.log"
        self.terminals[key] = self.sites[name].terminal(command, log)

    def _type(self, name: str, block: Block) -> str:
        """Type a block, and do in its place what fetches and what copies."""
        machine, said = self.sites[name], ""
        for line in re.split(r"^((?:git clone|scp|apt-get) .*\n)", block.text, flags=re.M):
            words = line.split()
            if line.startswith("git clone URL "):
                machine.install(words[-1])
            elif line.startswith("scp "):
                source, target = (self._place(machine, word) for word in words[1:])
                target.write_bytes(source.read_bytes())
            elif words and not line.startswith("apt-get install "):
                code, told = machine.type(line)
                assert code == 0, f"{block.section}, on {name}: {line}\n{told}\n{self.logs()}"
                said += told
        return said

    def _place(self, machine: Machine, word: str) -> Path:
        for name, address in ADDRESSES.items():
            if word.startswith(f"root@{address}:"):
                return self.sites[name].file(word.partition(":")[2])
        return machine.file(word)

    def ends(self, key: str, code: int = 0) -> None:
        """The process in a terminal ends, and with this exit code."""
        process = self.terminals.pop(key)
        assert process.wait(WAIT_S) == code, f"{key}: {self.logs()}"

    def status_when(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask on beta until something holds; return that status."""
        ends, last = time.monotonic() + WAIT_S, None
        while time.monotonic() < ends:
            last = self.sites["beta"].status(ENDPOINT)
            if last is not None and holds(last):
                return last
            for key, process in self.terminals.items():
                assert process.poll() is None, f"{key} has ended while waiting for {what}: {self.logs()}"
        pytest.fail(f"waited for {what}: {last}\n{self.logs()}")

    def logs(self) -> str:
        """The last lines of every terminal."""
        return "\n".join(f"== {each.name}\n{each.read_text()[-1500:]}" for each in sorted(self.folder.glob("*.log")))


def merged(status: dict[str, Any]) -> dict[str, int]:
    """Tokens merged of each learner process that is live."""
    return {each["name"]: each["merged_tokens"] for each in status["learners"] if each["state"] == "live"}


def both_merged(status: dict[str, Any]) -> bool:
    tokens = merged(status)
    return set(tokens) == {"alpha-0", "beta-0"} and min(tokens.values()) > 0


def unknown_keys(page: str, status: Any) -> list[str]:
    """Keys in the table of alarms that the status does not have."""
    rows = re.findall(r"^\| (`[^|]*)\|", page.partition("## Alarms")[2], re.M)
    rows += re.findall(r"`((?:learners|fragments)\[\][^`]*)`", page.partition("## Alarms")[2])
    named = {key for row in rows for key in (re.findall(r"`([^`]*)`", row) or [row])}
    return sorted(key for key in named if not has(status, key.split(".")))


def has(tree: Any, parts: list[str]) -> bool:
    """Say whether a path leads somewhere; an element that is None may hold anything that another one has."""
    if not parts:
        return True
    name, each = parts[0].removesuffix("[]"), parts[0].endswith("[]")
    if not isinstance(tree, dict) or name not in tree:
        return False
    return any(has(one, parts[1:]) for one in tree[name]) if each else has(tree[name], parts[1:])


def test_alarms_that_name_no_key_are_found() -> None:
    page = "## Alarms\n\n| key | means |\n|---|---|\n| `a`, `b[].c` | see `learners[].x` |\n| `a.d` | x |\n"
    assert unknown_keys(page, {"a": 1, "b": [{}, {"c": 2}], "learners": []}) == ["a.d", "learners[].x"]


TAKEN_OUT = "Taking a learner out, and a new key"


@pytest.mark.wan
@pytest.mark.timeout(1200)
def test_the_page_leads_to_a_run_of_two_sites(sites: dict[str, Machine], tmp_path: Path) -> None:
    """Typed from its top to its end, with what it promises after each section."""
    reader = Reader(sites, tmp_path)
    for name in ("Install", "Keys", "Settings", "Firewall"):
        reader.section(name)
    started = start(reader)
    assert not reaches(sites["beta"], 5704), "the firewall lets the next port through"
    assert reaches(sites["beta"], 5703)
    invited(reader)
    assert "exit code 2" in reader.section("A stranger")
    assert "who=" in reader.logs()
    back = take_out(reader, started)
    upgraded = upgrade(reader, back)
    reader.section("Stop")
    assert reader.terminals == {}
    reader.section("Backup")
    restored = reader.status_when("beta to be merged on the copy", lambda status: merged(status).get("beta-0", 0) > 0)
    assert restored["run_id"] == started["run_id"]
    assert restored["merged_tokens"] > upgraded["merged_tokens"]
    assert restored["node"]["run_dir"].endswith("restored")
    assert reader.left == [], "a section that nobody has typed"


def start(reader: Reader) -> dict[str, Any]:
    """Both learners are merged, the command of the page shows them, and the status has what alarms look at."""
    *starts, asks = [block for block in reader.blocks if block.section == "Start"]
    for block in starts:
        reader.block(block)
    started = reader.status_when("both to be merged", both_merged)
    said = reader.block(asks)
    assert "alpha-0" in said
    assert "beta-0" in said
    page = PAGE.read_text()
    lacking = unknown_keys(page, started)
    reader.status_when(f"the keys of the alarms: {lacking}", lambda status: unknown_keys(page, status) == [])
    return started


def invited(reader: Reader) -> None:
    """Who joins by a line is merged; said by somebody else it is refused; it leaves in order."""
    *joins, again, leaves = [block for block in reader.blocks if block.section == "One more, by one line"]
    for block in joins:
        reader.block(block)
    reader.status_when("the invited one to be merged", lambda status: merged(status).get("beta-1", 0) > 0)
    assert "exit code 2" in reader.block(again)
    reader.block(leaves)
    reader.status_when("it to have left", lambda status: both_merged(status) and "beta-1" not in merged(status))


def take_out(reader: Reader, started: dict[str, Any]) -> dict[str, Any]:
    """Who is taken out ends with code 2, and comes back with its new key; the other one trains on all the time."""
    first, *then = [block for block in reader.blocks if block.section == TAKEN_OUT]
    reader.block(first)
    reader.ends("beta: learner", 2)
    for block in then:
        reader.block(block)
    old = live(started)
    back = reader.status_when(  # for a moment the old process is not missed yet
        "beta with its new key",
        lambda status: both_merged(status) and live(status)["beta-0"] != old["beta-0"],
    )
    assert live(back)["alpha-0"] == old["alpha-0"]
    return back


def upgrade(reader: Reader, back: dict[str, Any]) -> dict[str, Any]:
    """The same learner processes are merged by the next syncer, which goes on where the last one ended."""
    reader.section("Upgrade")
    upgraded = reader.status_when(
        "both to be merged again",
        lambda status: status["epoch"] > back["epoch"] and status["rounds"] > 0 and both_merged(status),
    )
    assert live(upgraded) == live(back), "learners train on while the syncer is upgraded"
    assert upgraded["merged_tokens"] >= back["merged_tokens"]
    return upgraded


def live(status: dict[str, Any]) -> dict[str, str]:
    """The incarnation of each learner that is live."""
    return {each["name"]: each["incarnation"] for each in status["learners"] if each["state"] == "live"}


def reaches(machine: Machine, port: int) -> bool:
    """Say whether a connection is made within a second; what a firewall drops is not."""
    probe = f"import socket; socket.create_connection(('{ADDRESSES['alpha']}', {port}), 1).close()"
    return machine.type(f'python3 -c "{probe}" 2>/dev/null\n')[0] == 0
