"""One tree of exceptions; the class says whose fault it is.

ZdilocoError
  ConfigError            the user's: a file, key, flag or model that cannot work (exit code 2)
  PeerError              the other side's: handled as an event, never let out of a loop
    MalformedFrame         bytes that do not parse, or break a bound
    VersionMismatch        another protocol, run, layout or codec
    StaleIncarnation       a process that a newer one has replaced
  StoreError             the disk's: unreadable, truncated, foreign or full
  LinkError              nobody answers, or the other side is gone for good (exit code 3)
  LabError               this machine's: it lacks what a lab of namespaces and links wants
  MachineError           ours: a state that the rules exclude
"""


class ZdilocoError(Exception):
    """The root: everything that zdiloco raises on purpose."""

    exit_code = 1


class ConfigError(ZdilocoError):
    """The user's input cannot work; the text names the place, the value and what is allowed."""

    exit_code = 2


class PeerError(ZdilocoError):
    """A peer sent what it must not send."""


class MalformedFrame(PeerError):
    """Bytes of a peer do not parse, or break a bound."""


class VersionMismatch(PeerError):
    """A peer speaks another protocol, or belongs to another run, layout or codec."""


class StaleIncarnation(PeerError):
    """A peer process has been replaced by a newer one of the same name."""


class StoreError(ZdilocoError):
    """The disk is full, unreadable, or holds something that is not ours."""


class LinkError(ZdilocoError):
    """The other side does not answer, or is gone for good."""

    exit_code = 3


class LabError(ZdilocoError):
    """This machine lacks what a lab of namespaces and links wants, or has no such lab up; the text says what to do."""


class MachineError(ZdilocoError):
    """A state that the rules exclude: our own mistake."""
