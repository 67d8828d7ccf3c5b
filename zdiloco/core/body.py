"""What announces bytes that travel beside a message, in chunks."""

from dataclasses import dataclass

from zdiloco.core.bounds import MAX_COUNT, MAX_NAME, check_range, check_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """The bytes of a message that travel in chunks; `digest` is taken over the chunk checksums.

    `transfer` names them among everything the sender has under way."""

    transfer: str
    nbytes: int
    chunk_bytes: int
    digest: int

    def __post_init__(self) -> None:
        check_text(self, transfer=MAX_NAME * 2)
        check_range(self, nbytes=(0, MAX_COUNT), chunk_bytes=(1, 2**23), digest=(0, 2**64 - 1))
