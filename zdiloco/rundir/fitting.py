"""Whether the parts of a checkpoint fit each other: its manifest, its layout, and the values of each fragment."""

from collections.abc import Mapping
from typing import Any

from zdiloco.errors import ConfigError, MalformedFrame
from zdiloco.rundir.archive import Cut, FragmentCut
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.layout import Fragment, Layout


def layout_of_cut(cut: Cut) -> Layout:
    """The layout of a cut, whose values are as long as it says. Raises ConfigError where they do not fit each other."""
    layout = layout_of(cut.layout, cut.layout_digest, len(cut.fragments))
    for fragment, part in zip(layout.fragments, cut.fragments, strict=True):
        check_fragment(fragment, part)
    return layout


def layout_of(table: Mapping[str, Any], digest: str, fragments: int) -> Layout:
    """The layout in a checkpoint's table, which its manifest names with this digest and so many fragments.

    Raises ConfigError where they do not fit.
    """
    try:
        layout = Layout.from_obj(dict(table))
    except MalformedFrame as error:
        raise ConfigError(f"the checkpoint holds a layout that makes no sense: {error}") from error
    if layout.digest != digest or len(layout.fragments) != fragments:
        raise ConfigError(f"the checkpoint's layout is {layout.digest}, its manifest names {digest}")
    return layout


def check_fragment(fragment: Fragment, part: FragmentCut) -> None:
    """Raise ConfigError unless the values are as long as the layout says."""
    wanted = get_codec(part.codec).encoded_bytes(fragment.numel)
    if part.theta.numel() != fragment.numel or part.value.numel() != wanted:
        raise ConfigError(f"the checkpoint's fragment {fragment.index} has not the size that its layout says")
