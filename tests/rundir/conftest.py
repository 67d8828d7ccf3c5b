"""Fixtures of the tests about run folders: whole runs in this process (those of tests/node)."""

from tests.node.conftest import run_of  # noqa: F401 - a fixture
