"""All fuzzed parsers by name."""

from tests.fuzz import disk_targets, wire_targets
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {target.name: target for target in (*wire_targets.TARGETS, *disk_targets.TARGETS)}
