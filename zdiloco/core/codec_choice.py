"""Which codec a learner's contributions travel in, by what its link and its worker can do (`learner.codec = "auto"`).

Rule: the finest codec in which one period's contributions need at most half of the period, on the link and for encoding
together. It is changed by one step at a time, only where the need is clearly beyond that half or clearly within it, and
not again for some periods; who changed back, waits twice as long before the next change.
"""

from zdiloco.core.grace import Average

LADDER = ("bf16", "int8", "4bit")
"""Finest first; it starts in the middle."""
BYTES = {"bf16": 2.0, "int8": 1 + 4 / 256, "4bit": 0.5 + 2 / 64}
"""Of one value (docs/wire.md)."""
WORK = {"bf16": 1.0, "int8": 1.6, "4bit": 2.8}
"""Time of encoding, relative to each other: for those that have not been tried yet."""
COARSER_ABOVE, FINER_BELOW = 0.6, 0.4
"""Shares of a period around the half: what is in use may need so much, what is to be used only so little."""
WORTH = 0.9
"""A coarser codec must need less than this share of what the one in use needs: encoding takes its time, too."""
REST_PERIODS, MOST_REST_PERIODS = 4, 256
SAMPLES = 4
"""Contributions in a codec before it is judged."""


class CodecChoice:
    """The choice of one learner. `codec`: the one in use; `why`: the reason of its last change, empty before."""

    def __init__(self) -> None:
        self.codec, self.why = LADDER[1], ""
        self._values = 0.0
        self._encode_s = Average(0.25)
        self._bytes_s = 0.0
        self._samples = 0
        self._changed_at = 0
        self._rest = REST_PERIODS
        self._was_finer: bool | None = None

    def encoded(self, codec: str, nbytes: int, share: float, encode_s: float) -> None:
        """A contribution to a fragment with this share of the parameters was encoded within `encode_s`."""
        if codec in BYTES and share > 0.0:
            self._values = nbytes / BYTES[codec] / share
            self._encode_s.add(encode_s / share / WORK[codec])
            self._samples += codec == self.codec

    def needs_s(self, codec: str) -> float:
        """Seconds that one period's contributions need in this codec, on the link and for encoding."""
        encode_s = (self._encode_s.value or 0.0) * WORK[codec]
        return self._values * BYTES[codec] / self._bytes_s + encode_s if self._bytes_s > 0.0 else 0.0

    def judge(self, bytes_s: float, step: int, period_steps: int, step_s: float) -> str:
        """Change the codec if that is due; return why (empty: it is kept).

        `bytes_s`: the measured speed of the link, 0 while it is not known; `step`: of this learner; `step_s`: seconds.
        """
        self._bytes_s = bytes_s
        period_s = period_steps * step_s
        self._changed_at = min(self._changed_at, step)  # a learner that starts over counts its steps anew
        rested = step - self._changed_at >= self._rest * period_steps
        if not (bytes_s > 0.0 and period_s > 0.0 and rested and self._samples >= SAMPLES):
            return ""
        place = LADDER.index(self.codec)
        now_s = self.needs_s(self.codec)
        if now_s > COARSER_ABOVE * period_s and place + 1 < len(LADDER):
            if self.needs_s(LADDER[place + 1]) < WORTH * now_s:
                return self._change(LADDER[place + 1], step, period_s)
        elif place > 0 and self.needs_s(LADDER[place - 1]) < FINER_BELOW * period_s:
            return self._change(LADDER[place - 1], step, period_s)
        return ""

    def _change(self, codec: str, step: int, period_s: float) -> str:
        finer = LADDER.index(codec) < LADDER.index(self.codec)
        turned = self._was_finer is not None and finer != self._was_finer
        self._rest = min(2 * self._rest, MOST_REST_PERIODS) if turned else self._rest
        before, self.codec = self.codec, codec
        self._changed_at, self._samples, self._was_finer = step, 0, finer
        self.why = (
            f"at {8e-6 * self._bytes_s:.3g} Mbit/s a period of {period_s:.3g} s needs {self.needs_s(before):.3g} s of "
            f"link and encoding in {before}, {self.needs_s(codec):.3g} s in {codec}"
        )
        return self.why
