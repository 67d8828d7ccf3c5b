"""Files of JSON lines, as processes that may be killed at any moment leave them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zdiloco.errors import StoreError


def read_lines(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file in order, a line each; whatever is none is passed over.

    Half a line is what a kill leaves at the end, and a full disk anywhere. Raises StoreError where the file cannot be
    read; it says that it is the `what`.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")  # half a line may end within a character
    except OSError as error:
        raise StoreError(f"cannot read the {what} {path}: {error.strerror}") from error
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record
