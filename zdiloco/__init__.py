"""zdiloco: one model, trained on many islands of compute that may be far apart, unequal and unreliable."""

__version__ = "0.1.0"
