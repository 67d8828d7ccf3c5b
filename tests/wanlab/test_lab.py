"""Labs that are put up for real: what crosses them, what changes while they carry, and that nothing is ever left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zdiloco.wanlab.link import TUN
from zdiloco.wanlab.namespaces import namespaces, why_not

ROOT = Path(__file__).parent.parent.parent
NAME, OTHER = f"t{os.getpid()}", f"u{os.getpid()}"
LIMIT_S, PORT = 60.0, 5950
pytestmark = [pytest.mark.proc, pytest.mark.net, pytest.mark.wan, pytest.mark.slow]
WORDS = [sys.executable, "-m", "zdiloco.cli.wanlab", "--lab"]
CHAIN = """
regions = ["a", "b", "c"]
[links.ab]
between = ["a", "b"]
delay = "20ms"
[links.bc]
between = ["b", "c"]
delay = "30ms"
"""
HELLO = "import socket; s = socket.create_connection(('{}', {}), {}); print(s.getsockname()[0]); s.recv(1)"


def run(*words: str, lab: str = NAME, **more: Any) -> subprocess.CompletedProcess[str]:
    """One command of wan-lab, to its end."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*WORDS, lab, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env, **more
    )


def done(*words: str, lab: str = NAME) -> str:
    """What one command says that does what it should."""
    ended = run(*words, lab=lab)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


def links(lab: str = NAME) -> list[int]:
    """Processes of links of a lab, by their command line."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            line = (each / "cmdline").read_bytes()
        except OSError:
            continue
        if f"/zdiloco-wan-lab/{lab}/".encode() in line and b"wanlab.link" in line:
            found.append(int(each.name))
    return found


def left(lab: str = NAME) -> list[str]:
    """All that there is of a lab."""
    places = [each for each in namespaces() if each.startswith(f"wanlab.{lab}.")]
    return [*places, *map(str, links(lab)), *map(str, Path("/run/zdiloco-wan-lab").glob(f"{lab}/*"))]


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Without what a lab wants CI fails, and others skip; what a failed test leaves is cleared."""
    reason = why_not(f"wanlab.probe.{os.getpid()}") or ("" if Path(TUN).exists() else f"there is no {TUN}")
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    yield
    for lab in (NAME, OTHER):
        run("down", lab=lab)
        Path(f"/run/zdiloco-wan-lab/{lab}.lock").unlink(missing_ok=True)


@pytest.fixture
def chain(tmp_path: Path) -> str:
    path = tmp_path / "chain.toml"
    path.write_text(CHAIN)
    return str(path)


class Server:
    """Says one byte to whoever connects, from a region, and nothing more."""

    CODE = (
        "import socket, sys\nlistener = socket.create_server(('0.0.0.0', int(sys.argv[1])))\n"
        "print('listens', flush=True)\nwhile True:\n    one, _ = listener.accept(); one.sendall(b'x'); one.close()"
    )

    def __init__(self, region: str, lab: str = NAME) -> None:
        words = [*WORDS, lab, "exec", region, "--", sys.executable, "-c", self.CODE, str(PORT)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout
        with self.process.stdout as out:
            assert out.readline() == "listens\n"


def hello(region: str, address: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Connect from a region, and read a byte: a round trip and a half."""
    return run("exec", region, "--", sys.executable, "-c", HELLO.format(address, PORT, limit_s))


def test_regions_reach_each_other_by_one_address_each(chain: str) -> None:
    """Also over a region between them; who connects has its region's address; delays add up."""
    out = done("up", chain)
    engine = re.search(r"engine (netem|tun)", out)
    assert engine, out
    shown = json.loads(done("show", "--json"))
    assert shown["engine"] == engine[1]
    addresses = {each["name"]: each["address"] for each in shown["regions"]}
    assert all(address in out for address in addresses.values())
    server = Server("c")
    began = time.monotonic()
    assert hello("a", addresses["c"]).stdout == f"{addresses['a']}\n"
    assert time.monotonic() - began > 2 * 0.1, "connecting is a round trip of 100 ms, and the byte comes 50 ms later"
    assert done("down") == f"{NAME}: taken down\n"
    assert server.process.wait(LIMIT_S) == -signal.SIGTERM, "it was in a region"
    assert left() == []
    assert done("down") == f"{NAME}: nothing was up\n"


def test_a_link_changes_while_it_carries(chain: str) -> None:
    done("up", chain)
    server = Server("b")
    assert "rate=5mbit delay=20ms jitter=1ms loss=1%" in done("set", "ab", "rate=5mbit", "loss=1%", "jitter=1ms")
    assert "rate=5mbit delay=20ms jitter=1ms loss=1%" in done("show")
    assert done("partition", "a") == "cut: ab\n"
    assert "CUT" in done("show")
    assert "imed out" in hello("a", "10.78.2.1", 0.5).stderr
    assert hello("c", "10.78.2.1").returncode == 0, "the other link carries"
    assert done("heal") == "healed: ab, bc\n"
    assert hello("a", "10.78.2.1").returncode == 0
    server.process.terminate()
    server.process.wait(LIMIT_S)


def test_two_labs_do_not_know_each_other(chain: str) -> None:
    done("up", chain)
    done("up", "one-link-200mbit-80ms", lab=OTHER)
    done("down")
    assert left() == []
    assert "wanlab" in " ".join(left(OTHER))
    done("down", lab=OTHER)
    assert left(OTHER) == []


def killed_while_up(chain: str, until: Callable[[], bool]) -> None:
    """Start `up`, and kill it when this holds for the first time."""
    process = subprocess.Popen([*WORDS, NAME, "up", chain], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ends_at = time.monotonic() + LIMIT_S
    while not until():
        assert process.poll() is None, "it was too fast"
        assert time.monotonic() < ends_at
    process.kill()
    process.wait(LIMIT_S)


@pytest.mark.parametrize("after", ["down", "up"])
@pytest.mark.parametrize("moment", ["namespaces", "links"])
def test_what_a_killed_one_left_is_cleared(chain: str, moment: str, after: str) -> None:
    """In the middle of `up`: with namespaces, or a link's process that no state names; then by `down`, or by `up`."""
    killed_while_up(chain, (lambda: bool(links())) if moment == "links" else (lambda: len(left()) > 1))
    assert left() != []
    if after == "up":
        done("up", chain)
        assert len(links()) in (0, 2)
        assert json.loads(done("show", "--json"))["links"][0]["cut"] is False
    done("down")
    assert left() == []


def test_a_link_whose_process_was_killed_is_one_line(chain: str) -> None:
    done("up", chain, "--engine", "tun")  # whatever the kernel has: of netem's links none has a process
    for pid in links():
        os.kill(pid, signal.SIGKILL)
    ended = run("set", "ab", "loss=1%")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    done("up", chain)
    done("down")
    assert left() == []


def test_nobody_else_is_ended(chain: str) -> None:
    """A process whose command line only resembles a link's, outside of all regions, lives on."""
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, "zdiloco.wanlab.link", "/run/zdiloco-wan-lab/another/x.sock"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        done("up", chain)
        done("down")
        assert other.poll() is None
        assert other.stdin
        other.stdin.close()


def test_a_failed_up_leaves_nothing(tmp_path: Path) -> None:
    """Its sockets' folder is too long a path for a socket: the first link cannot start."""
    path = tmp_path / "p.toml"
    path.write_text(CHAIN)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = (
        "import sys; from zdiloco.wanlab import engines; engines.TUN = '/nowhere/tun'\n"
        "from zdiloco.cli.wanlab import wan_lab, run; sys.exit(run(sys.argv[1:], command=wan_lab, name='wan-lab'))"
    )
    words = [sys.executable, "-c", code, "--lab", NAME, "up", str(path), "--engine", "tun"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert "/nowhere/tun: modprobe tun" in ended.stderr
    assert left() == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["exec", "a", "true"], 1, "is not up: bin/wan-lab up PROFILE"),
        (["set", "ab", "rate=1mbit"], 1, "is not up"),
        (["show"], 1, "is not up"),
        (["up", "us-4-regin"], 2, "did you mean us-4-region"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], code: int, says: str) -> None:
    ended = run(*words)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (code, 1)
    assert says in ended.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["exec", "d", "true"], "no region 'd'; there are a, b, c"),
        (["exec", "a", "/nowhere/x"], "cannot run /nowhere/x"),
        (["set", "xy", "rate=1mbit"], "no link 'xy'; there are ab, bc"),
        (["set", "ab", "rate=1"], "link ab: rate is '1'; allowed is 0.01mbit to 100000mbit"),
        (["set", "ab", "rat=1mbit"], "link ab: unknown key rat"),
        (["partition", "zz"], "no link or region 'zz'; there are ab, bc, a, b, c"),
    ],
)
def test_a_wrong_word_is_one_line(chain: str, words: list[str], says: str) -> None:
    done("up", chain)
    ended = run(*words)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1), ended
    assert says in ended.stderr
