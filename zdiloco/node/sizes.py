"""How long a body that a learner offers may be, judged before a byte of it is allocated."""

from zdiloco.core import machine as m
from zdiloco.core.messages import Bundle, Handback, InitialOffer, LayoutOffer, Loan
from zdiloco.node.syncer_body import MAX_LAYOUT_BYTES, MAX_RECORD_BYTES
from zdiloco.tensor.codecs import NAMES, get_codec
from zdiloco.tensor.delta import GRIDS
from zdiloco.tensor.layout import Layout
from zdiloco.tensor.partial import CODECS, bundle_bytes


def wrong_size(message: m.Fetchable, layout: Layout | None) -> str:
    """Say why the announced length cannot be right; empty: it can. `core/loans.py` has the bound of a loan."""
    nbytes = message.body.nbytes
    if isinstance(message, LayoutOffer):
        return "" if nbytes <= MAX_LAYOUT_BYTES else f"a layout of {nbytes} bytes"
    if layout is None or message.fragment >= len(layout.fragments):
        return f"there is no fragment {message.fragment}"
    numel = layout.numels[message.fragment]
    if isinstance(message, InitialOffer):
        return "" if nbytes == 4 * numel else f"{nbytes} bytes of initial values, where {4 * numel} are right"
    if isinstance(message, Loan):
        return ""
    if isinstance(message, Bundle):
        fits = message.codec in CODECS and nbytes == bundle_bytes(layout.fragments[message.fragment], message.codec)
        return "" if fits else f"{nbytes} bytes in {message.codec!r} are no bundle"
    if message.codec not in NAMES:
        return f"no codec is called {message.codec!r}"
    wanted = get_codec(message.codec).encoded_bytes(numel)
    if isinstance(message, Handback):
        if message.codec not in GRIDS:
            return f"no state is published in {message.codec!r}"
        fits = message.value_bytes == wanted and wanted <= nbytes <= wanted + MAX_RECORD_BYTES
        return "" if fits else f"{nbytes} bytes handed back, where {wanted} and a map are right"
    return "" if nbytes == wanted else f"{nbytes} bytes, where {wanted} are right"
