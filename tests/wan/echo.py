"""Words there and back: how long the syncer's answer takes on the control road, asked again and again from a region."""

import threading
import time
from dataclasses import replace
from typing import Any

from tests.wan.lab import Lab
from zdiloco.core.messages import Status
from zdiloco.node.query import Query
from zdiloco.units import MemberKey

LIMIT_S = 30.0


class Echo(Query):
    """A question whose answer is the word that announces the status; its body is not fetched."""

    def on_message(self, key: MemberKey, message: Any, now: float) -> None:
        """A word came in."""
        if isinstance(message, Status):
            self._answer = {}


class Echoes:
    """Some who ask in a region at once, each as soon as it has its answer and has rested, from now until `stop`.

    Several, since one that waits long asks seldom, and so would count what it suffers as little as possible. Two places
    compare if their answers are as far apart: of a moment in which nothing runs, whoever asks often sees less.
    """

    def __init__(self, lab: Lab, region: int, askers: int = 1, rest_s: float = 0.01) -> None:
        self.took_s: list[float] = []
        self._rest_s = rest_s
        self._net = replace(lab.config.net, connect=f"10.77.{region}.1" if region else "127.0.0.1")
        self._stopping = threading.Event()
        job = lab.regions.inside(region, self._ask)
        self._threads = [threading.Thread(target=job, name=f"echo-{region}-{number}") for number in range(askers)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with Echo(self._net) as echo:
            echo.ask(LIMIT_S)  # with what it takes to connect
            while not self._stopping.wait(self._rest_s):
                began = time.monotonic()
                echo.ask(LIMIT_S)
                self.took_s.append(time.monotonic() - began)

    def stop(self) -> list[float]:
        """How long each answer took, shortest first."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * LIMIT_S)
            assert not thread.is_alive()
        return sorted(self.took_s)


def part(took_s: list[float], share: float) -> float:
    """What so many of them take at most."""
    return took_s[min(len(took_s) - 1, int(share * len(took_s)))]
