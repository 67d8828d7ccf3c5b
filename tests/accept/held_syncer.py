"""A syncer whose merges wait for a file `merges` in its working folder."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

from zdiloco.cli.main import main
from zdiloco.node.syncer_body import SyncerBody

LIMIT_S = 120.0
merge = SyncerBody.merge


def held(*arguments: Any) -> Any:
    """Wait for the file, with an end, then merge."""
    ends = time.monotonic() + LIMIT_S
    while not Path("merges").exists() and time.monotonic() < ends:
        threading.Event().wait(0.02)
    return merge(*arguments)


if __name__ == "__main__":
    SyncerBody.merge = held
    sys.exit(main())
