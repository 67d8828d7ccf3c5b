"""All fuzzed parsers by name."""

from tests.fuzz import disk_targets, doctor_target, inner_target, wire_targets
from tests.fuzz.target import Target

EVERY = (*wire_targets.TARGETS, *inner_target.TARGETS, *disk_targets.TARGETS, *doctor_target.TARGETS)
TARGETS: dict[str, Target] = {target.name: target for target in EVERY}
