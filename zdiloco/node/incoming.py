"""An update that has come to a learner: from its bytes to the new reference, and whether that is the published one."""

from dataclasses import dataclass

from torch import Tensor

from zdiloco.errors import MachineError
from zdiloco.node.publishing import digest_of
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.delta import add_delta
from zdiloco.units import Stamp


@dataclass(slots=True)
class IncomingUpdate:
    """An update that is here: its value as bytes in `codec`, and worked out, (n_p,) fp32, once a worker was at it.

    `digest`: of the new reference on its grid, as announced. `base`: what the value is a delta to; None: it is whole.
    `proof`: what the syncer would know it again by. `grid`: the codec of the new reference, once it is worked out.
    """

    transfer: str
    codec: str
    value: memoryview | None
    digest: int
    base: Stamp | None = None
    proof: str = ""
    theta: Tensor | None = None
    grid: str = ""

    def work_out(self, reference: Tensor | None, grid: str, numel: int) -> str:
        """Have `theta` and `grid`, once, from R (n_p,) fp32 on its grid. Returns why it does not fit; empty: it does.

        Nothing is kept that has not the announced digest.
        """
        if self.theta is not None:
            return ""
        if self.value is None:
            raise MachineError(f"the bytes of the update {self.transfer!r} are gone")
        if self.base is None:
            found, made, theta = self.codec, digest_of(self.value), get_codec(self.codec).decode(self.value, numel)
        elif reference is None:
            return "it is a delta, and nothing is adopted yet"
        else:
            moved = add_delta(reference, self.value, self.codec, grid)
            found, made, theta = grid, digest_of(moved), get_codec(grid).decode(moved, numel)
        if made != self.digest:
            return f"its value has digest {made:016x}, announced was {self.digest:016x}"
        self.value, self.theta, self.grid = None, theta, found
        return ""
