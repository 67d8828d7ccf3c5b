"""Fixtures of the hostile tests: runs within this process (those of tests/node), and a stage for processes."""

from tests.accept.conftest import stage  # noqa: F401 - a fixture
from tests.node.conftest import run_of  # noqa: F401 - a fixture
