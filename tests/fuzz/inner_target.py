"""Inner state that a peer lends, as any bytes: what is taken can be trained on."""

import torch

from tests.fuzz.target import Target
from tests.tensor.inner_samples import Trained
from zdiloco.errors import MalformedFrame
from zdiloco.tensor.inner import CODECS


def _seeds() -> list[bytes]:
    trained = Trained()
    seeds = []
    for at, codec in enumerate(CODECS):
        copied = trained.inner.now_copy(0)
        assert copied is not None
        seeds.append(bytes([at]) + trained.inner.later_encode(copied, codec).numpy().tobytes())
    return seeds


def parse_inner(data: bytes) -> None:
    """The first byte picks the codec: what is not refused leaves every parameter finite after a step."""
    trained = Trained()
    values = trained.inner.later_decode(0, CODECS[(data or b"\0")[0] % len(CODECS)], memoryview(data)[1:])
    trained.inner.now_load(values)
    trained.step()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in trained.model.parameters())


TARGETS = (Target(name="inner", parse=parse_inner, allowed=(MalformedFrame,), seeds=_seeds, grows=4000, slow=True),)
