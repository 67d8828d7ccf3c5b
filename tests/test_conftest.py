"""The guards of conftest.py are tried themselves: each fails a test that leaves something behind, and no other."""

import pathlib
import socket
from collections.abc import Callable

import pytest

pytest_plugins = ["pytester"]

CONFTEST = pathlib.Path(__file__).with_name("conftest.py").read_text()

LEAKY = """
import logging
import threading
import pytest, zmq

def test_clean(zctx):
    thread = threading.Thread(target=lambda: None)
    thread.start()
    with zctx.socket(zmq.PUB) as pub:
        pub.bind_to_random_port("tcp://127.0.0.1")

def test_thread():
    threading.Thread(target=threading.Event().wait, name="left-alone", daemon=True).start()

def test_socket(zctx):
    zctx.socket(zmq.DEALER)

def test_message_that_lingers(zctx):
    with zctx.socket(zmq.PUSH) as push:
        push.connect("tcp://127.0.0.1:9")
        push.send(b"nobody is there")

def test_logging():
    logger = logging.getLogger("zdiloco")
    logger.handlers.append(logging.NullHandler())
    logger.setLevel("ERROR")
    logger.propagate = False

def test_logging_is_as_it_was():
    logger = logging.getLogger("zdiloco")
    assert (logger.handlers, logger.level, logger.propagate) == ([], logging.NOTSET, True)

@pytest.mark.net
def test_later():
    pass

def test_order(request):
    assert [item.name for item in request.session.items][-1] == "test_later"
"""


def test_guards_fail_what_leaks_and_nothing_else(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run of its own: thread, socket and lingering message are found, logging is put back, the rest passes."""
    impatient = CONFTEST.replace("LIMIT_S = 10.0", "LIMIT_S = 0.3").replace("LIMIT_S = 15.0", "LIMIT_S = 0.5")
    pytester.makeconftest(impatient)
    pytester.makepyfile(LEAKY)
    pytester.makeini("[pytest]\nmarkers = net: sockets\n")
    monkeypatch.setenv("ZDILOCO_TEST_PARTS", "mypy: ok, 3 s;")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=200)
    result.assert_outcomes(passed=8, errors=3)
    out = result.stdout.str()
    assert "threads left running: left-alone" in out
    assert "sockets left open: DEALER" in out
    assert "the context did not end within 0.5 s" in out
    assert "threads left running: zctx-term" in out  # the context that did not end is a thread, too
    assert "mypy: ok, 3 s" in out
    assert "net tests: " in out


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)])
def test_what_a_test_says_is_printed_by_whoever_prints(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_it(say): say('seen: 7')")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=200)
    result.assert_outcomes(passed=1)
    assert [line for line in result.outlines if "seen: 7" in line] == ["seen: 7"]
    assert any(line.startswith("pure tests: ") for line in result.outlines)


def test_what_needs_a_device_is_left_out_by_name(pytester: pytest.Pytester) -> None:
    """Without one: a line that says so, and how many; no skip, which in CI would be a fault of the machine."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import pytest\ndef test_one(): pass\n@pytest.mark.gpu\ndef test_two(): pass\n")
    pytester.makepyfile(torch="class cuda:\n    is_available = lambda: False\nget_num_threads = lambda: 1\n")
    pytester.makeini("[pytest]\nmarkers = gpu: a device\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=200)
    result.assert_outcomes(passed=1, deselected=1)
    assert "gpu: no CUDA device here, 1 tests left out" in result.stdout.str()


def test_free_ports_can_be_bound_and_never_come_twice(free_ports: Callable[[int], int]) -> None:
    """Two ranges of four do not overlap, and every port of them can be bound."""
    first, second = free_ports(4), free_ports(4)
    ports = [*range(first, first + 4), *range(second, second + 4)]
    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
