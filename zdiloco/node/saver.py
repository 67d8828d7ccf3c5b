"""Saves a learner's state while it trains: copied a bounded number of bytes a step, written on a thread of its own.

Rule: methods named `now_*` run on the training thread, between two steps, and wait for nothing; `later_*` run on the
saver's. Of the inner state, what belongs to one parameter is copied together, parameters one after another; data and
random state are taken at the last of these boundaries (docs/decisions/0008-a-learner-comes-back.md). Whatever the disk
says, training goes on, and it is tried again.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from zdiloco.errors import ConfigError, StoreError
from zdiloco.node.clock import Clock
from zdiloco.node.parts import Parts
from zdiloco.node.worker import Worker
from zdiloco.rundir.saved import INNER, About, SavedStates, inner_is_finite
from zdiloco.rundir.tree import pack
from zdiloco.tensor.mirror import PIECE, Mirror

log = logging.getLogger(__name__)

COPY_SHARE = 0.02
COPY_RATE = 4e9
"""A step may pay so much of its own length, at so many bytes a second: 4 MB of a step of 50 ms."""
MOST_A_STEP = 2**28
CUT_SHORT_S = 0.2


class Saver:
    """`every_s`: between two saves, 0: never. `about`: whose state it is now; `on_failure`: our own failure, once."""

    def __init__(
        self, states: SavedStates, parts: Parts, about: Callable[[], About], *, every_s: float, clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._states, self._parts, self._about = states, parts, about
        self._every_s, self._clock = every_s, clock
        self._due = clock()  # the first one at the first step: what cannot be saved shows at once
        self._worker = Worker("zdiloco-saver", on_failure)
        self._mirror = Mirror()
        self._attempt = 0
        self._busy = False
        self._gathering: Iterator[int] | None = None
        self._state: list[Any] = []
        self._names: set[str] = set()
        self._found: dict[str, Any] = {}
        self._step_s = float("inf")
        self._warned = ""
        self.saves = 0

    # ---- on the training thread

    def now_step(self, step_s: float) -> None:
        """A step of `step_s` seconds is done: begin to save where it is time, or go on with it.

        Raises ConfigError naming what can never be saved; later in the process's life this is only warned of.
        """
        if self._found:
            self._parts.load_inner(self._found.pop(INNER))
        elif self._gathering is not None:
            self._gather(min(step_s, self._step_s))
        elif not self._busy and self._every_s and self._clock() >= self._due:
            self._begin()
        self._step_s = step_s

    def _begin(self) -> None:
        self._busy, self._due = True, self._clock() + self._every_s
        self._attempt += 1
        attempt, inner = self._attempt, self._parts.inner()
        self._worker.submit(lambda: self._later_prepare(attempt, inner))

    def _gather(self, step_s: float) -> None:
        assert self._gathering is not None
        left = max(PIECE, min(MOST_A_STEP, COPY_SHARE * COPY_RATE * step_s))
        try:
            for cost in self._gathering:
                left -= cost
                if left <= 0:
                    self._mirror.now_mark()
                    return
            self._end_gathering()
        except ConfigError as error:
            self._stop_gathering()
            if not self.saves:
                raise ConfigError(f"{error}; learner.save_every_s = 0 saves nothing") from error
            self._warn(str(error))

    def _now_gather(self, inner: dict[str, Any]) -> Iterator[int]:
        for key, entry in list(inner.get("state", {}).items()):
            live: dict[str, Tensor] = {}
            self._state += pack({key: entry}, f"{INNER}.state", live)["dict"]
            if not self._names.isdisjoint(live):
                raise ConfigError(f"{INNER}.state cannot be saved: it has two keys {str(key)!r}")
            self._names.update(live)
            yield from self._mirror.now_copy(live)

    def _end_gathering(self) -> None:
        live: dict[str, Tensor] = {}
        beside = {name: each for name, each in self._parts.inner().items() if name != "state"}
        inner, rest = pack(beside, INNER, live), self._parts.pack_rest(live)
        inner["dict"].append(["state", {"dict": self._state}])
        for _ in self._mirror.now_copy(live):
            pass
        self._mirror.now_mark()
        attempt, about, parts = self._attempt, self._about(), {INNER: inner, **rest}
        copies = self._mirror.copies([*self._names, *live])
        self._stop_gathering(busy=True)
        self._worker.submit(lambda: self._later_write(attempt, about, parts, copies))

    def _stop_gathering(self, *, busy: bool = False) -> None:
        self._gathering, self._busy = None, busy
        self._state, self._names = [], set()

    def now_start_over(self) -> None:
        """The values were not finite: the inner state goes back to that of the last finite save, or to nothing.

        It is nothing at once, and what was saved comes when it has been read.
        """
        self._parts.forget_inner()
        self._attempt += 1
        self._stop_gathering(busy=True)
        self._worker.submit(self._later_find)

    def now_leave(self) -> None:
        """Begin to save what is now, all of it; until `close` has returned nothing of it may change."""
        self._attempt += 1
        self._stop_gathering(busy=True)
        if not self._every_s:
            return
        live: dict[str, Tensor] = {}
        try:
            inner, rest = pack(self._parts.inner(), INNER, live), self._parts.pack_rest(live)
        except ConfigError as error:
            self._warn(str(error))
            return
        for device in {tensor.device for tensor in live.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        attempt, about = self._attempt, self._about()
        self._worker.submit(lambda: self._later_write(attempt, about, {INNER: inner, **rest}, live))

    def close(self, ends: float) -> None:
        """End the thread; what is not saved by `ends` is given up, and the state of before stays."""
        if not self._worker.close(max(0.0, ends - self._clock())):
            self._attempt += 1
            self._worker.close(CUT_SHORT_S)
            self._warn("there was no time for it before the end")

    # ---- on the saver's thread

    def _later_prepare(self, attempt: int, inner: dict[str, Any]) -> None:
        tensors: dict[str, Tensor] = {}
        try:
            pack(inner.get("state", {}), f"{INNER}.state", tensors)
        except (ConfigError, RuntimeError):  # the training thread will say so; or it has just added to the state
            log.debug("memory for the saved state is made in the training thread")
        self._mirror.later_reserve(tensors)
        if attempt == self._attempt:
            self._gathering = self._now_gather(inner)

    def _later_write(self, attempt: int, about: About, parts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        began = self._clock()
        try:
            self._mirror.later_wait()
            if not inner_is_finite(tensors):
                raise StoreError("the inner optimizer holds numbers that are not finite")
            path = self._states.write(about, parts, tensors, unless=lambda: attempt != self._attempt)
        except StoreError as error:
            self._warn(str(error))
        else:
            self.saves, self._warned = self.saves + bool(path), ""
            if path:
                log.debug("saved step=%d seconds=%.3f file=%s", about.step, self._clock() - began, path.name)
        if attempt == self._attempt:
            self._busy = False

    def _later_find(self) -> None:
        try:
            saved = self._states.read()
        except StoreError as error:
            self._warn(str(error))
            saved = None
        if saved and INNER in saved.parts:
            self._found = {INNER: saved.parts[INNER]}
        self._busy = False

    def _warn(self, why: str) -> None:
        if why != self._warned:
            log.warning("the state of this learner is not saved for now why=%r", why)
        self._warned = why
