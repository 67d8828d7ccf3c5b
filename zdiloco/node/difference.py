"""What differs between this process's model and the run's, said by a learner that was turned away for it.

Rule: a help, no part of the protocol: it has an end, and where the run's layout cannot be had the digests must do.
"""

from zdiloco.errors import ZdilocoError
from zdiloco.node.params import NetParams
from zdiloco.node.query import Query
from zdiloco.tensor.layout import Layout, first_difference

ASK_S = 4.0


def difference(net: NetParams, layout: Layout, name: str) -> str:
    """Ask the syncer for the run's layout; return where `layout` first differs, as the end of a sentence, or ''.

    `name`: the learner's, whose key may be the one to ask with.
    """
    try:
        with Query(net, name=name) as query:
            theirs = Layout.from_obj(query.ask(ASK_S, layout=True))
    except ZdilocoError as error:
        return f" (which tensor differs first is not known: {error})"
    return f"; first difference: {first_difference(layout, theirs, 'this model', 'the run') or 'none'}"
