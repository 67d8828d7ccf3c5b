"""The version of this package, where everybody may read it."""

VERSION = "0.1.0"
