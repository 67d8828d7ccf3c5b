"""What every test shares: one thread for torch, sockets and threads that must not outlive a test, tiers in order.

Rule: fixtures that guard (`zctx`, `no_thread_outlives_the_test`) fail the test that left something behind, name what it
left, and clean up, so that the next test starts from nothing. Every wait here has an end.
"""

import functools
import itertools
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

# Before anything loads torch: several torch processes on few cores, and threads that spin, ruin every timing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hypothesis
import pytest
import zmq
import zmq.utils.garbage

if TYPE_CHECKING:
    from zdiloco.chaos.forked import Nursery

hypothesis.settings.register_profile(
    "zdiloco",
    deadline=None,  # shared machines stall; pytest-timeout bounds a test
    derandomize=bool(os.environ.get("CI")),  # a red CI run must be red again at the next try
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("zdiloco")

JOIN_LIMIT_S = 10.0
TERM_LIMIT_S = 15.0
TIERS = ("net", "proc", "slow", "wan", "long")  # a test without these marks is pure

_bases = itertools.count(20_000 + os.getpid() % 600 * 16)
_seconds: dict[str, float] = {}
_said: list[str] = []
_left_out: list[str] = []  # what was not run, and why
_started = time.monotonic()


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Nursery]":
    """What the processes of all stages and labs are forked from; whoever it has started has ended with the session."""
    from zdiloco.chaos.forked import Nursery

    found = Nursery(tmp_path_factory.mktemp("forks"), module="tests.accept.forks")
    yield found
    found.close()


@pytest.fixture(scope="session", autouse=True)
def zero_copy_collector() -> Iterator[None]:
    """pyzmq frees what was sent without a copy on one thread of the process: it lives as long as the session."""
    zmq.utils.garbage.gc.start()
    yield
    zmq.utils.garbage.gc.stop()


def _tier(item: pytest.Item) -> int:
    """Return 0 for a pure test, else 1 + the place of its heaviest mark in TIERS."""
    marks = {mark.name for mark in item.iter_markers()}
    return max((1 + TIERS.index(name) for name in marks & set(TIERS)), default=0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the pure tests first, then tier by tier; the order within a tier stays. Without a device, leave `gpu` out."""
    items.sort(key=_tier)
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_device():
        items[:] = [item for item in items if item not in gpu]
        config.hook.pytest_deselected(items=gpu)
        _left_out.append(f"gpu: no CUDA device here, {len(gpu)} tests left out")


def _has_device() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_finish() -> None:
    """Note how long it took to find the tests, which includes loading torch."""
    _seconds["collecting"] = time.monotonic() - _started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Hold torch to one thread as soon as some test has loaded it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note the tier; the report may travel to the process that prints."""
    report = yield
    report.tier = ("pure", *TIERS)[_tier(item)]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time of each tier, and keep what tests say."""
    name = f"{report.tier} tests"
    _seconds[name] = _seconds.get(name, 0.0) + report.duration
    if report.when == "teardown":
        _said.extend(text for kind, text in report.user_properties if kind == "said")


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return a function that prints a line at the end of the run, whichever process ran the test."""
    return functools.partial(record_property, "said")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests said, and how long each part took: those that bin/test ran before, and each tier of tests."""
    for line in _said:
        terminalreporter.write_line(line)
    parts = [part for part in os.environ.get("ZDILOCO_TEST_PARTS", "").split(";") if part]
    parts += [f"{name}: {seconds:.1f} s" for name, seconds in _seconds.items()] + _left_out
    if parts:
        terminalreporter.write_sep("=", "time of each part")
        for part in parts:
            terminalreporter.write_line(part)


@pytest.fixture(autouse=True)
def no_thread_outlives_the_test() -> Iterator[None]:
    """Fail a test that leaves threads running, by their names, after a short wait for them to end.

    Threads of fixtures with a wider scope are older than the test and do not count.
    """
    before = set(threading.enumerate())
    yield
    left = []
    for thread in set(threading.enumerate()) - before:
        if isinstance(thread, threading._DummyThread):
            continue  # a thread of native code (torch's) that once called into Python; it cannot be joined
        thread.join(JOIN_LIMIT_S)
        if thread.is_alive():
            left.append(thread.name)
    if left:
        pytest.fail(f"threads left running: {', '.join(sorted(left))}")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Put back how zdiloco logs: a command sets it up for its process, on the standard error that a test captures."""
    logger = logging.getLogger("zdiloco")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture
def zctx() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """Yield a ZeroMQ context; afterwards it is terminated, and the test fails if it left sockets open.

    Sockets of the context may be made and closed by any thread of the test.
    """
    opened: list[zmq.Socket[bytes]] = []

    class TrackedContext(zmq.Context):
        def socket(self, *args, **kwargs):
            made = super().socket(*args, **kwargs)
            opened.append(made)
            return made

    context = TrackedContext()
    yield context
    left = [made for made in opened if not made.closed]
    names = sorted(zmq.SocketType(made.type).name for made in left)
    for made in left:
        made.close(linger=0)
    ender = threading.Thread(target=context.term, name="zctx-term", daemon=True)
    ender.start()
    ender.join(TERM_LIMIT_S)
    if names:
        pytest.fail(f"sockets left open: {', '.join(names)}")
    if ender.is_alive():
        pytest.fail(f"the context did not end within {TERM_LIMIT_S} s: some socket was closed without linger=0")


def _all_free(base: int, count: int) -> bool:
    """Say whether TCP ports base..base+count-1 of 127.0.0.1 can all be bound now."""
    held = []
    try:
        for port in range(base, base + count):
            held.append(socket.socket())
            held[-1].bind(("127.0.0.1", port))
    except OSError:
        return False
    finally:
        for sock in held:
            sock.close()
    return True


def _found_ports(count: int) -> int:
    for _ in range(2_000):
        base = next(_bases)
        for _ in range(count - 1):
            next(_bases)
        base = 20_000 + base % 12_000
        if base + count <= 32_000 and _all_free(base, count):
            return base
    raise RuntimeError(f"no {count} free ports in a row on 127.0.0.1 between 20000 and 32000")


@pytest.fixture(scope="session")
def module_ports() -> Callable[[int], int]:
    """`free_ports`, for fixtures that outlive a test."""
    return _found_ports


@pytest.fixture
def free_ports() -> Callable[[int], int]:
    """Return a function: count -> base, where base..base+count-1 are free loopback ports, never handed out before.

    They lie below the range that the kernel gives to outgoing connections, so nobody takes one by accident; another
    process may, on purpose.
    """

    return _found_ports
