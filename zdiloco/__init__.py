"""zdiloco: one model, trained on many islands of compute that may be far apart, unequal and unreliable."""

from zdiloco.version import VERSION

__version__ = VERSION


def __getattr__(name: str) -> object:
    """Hand `Learner` on without loading torch for whoever only asks for a version or a status."""
    if name == "Learner":
        from zdiloco.api import Learner

        return Learner
    raise AttributeError(f"module 'zdiloco' has no attribute {name!r}")
