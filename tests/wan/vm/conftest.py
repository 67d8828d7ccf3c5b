"""The kernel of the virtual machines: fetched once, for all of them."""

import os
from pathlib import Path

import pytest

from tests.wan.vm.machine import Kernel, kernel_in, why_none


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """A kernel to boot; where there can be no machine the test is passed over, in CI it fails."""
    reason = why_none()
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    cache = request.config.cache
    assert cache is not None
    return kernel_in(Path(cache.mkdir("netem-kernel")))
