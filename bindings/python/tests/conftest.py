"""What all tests share: an SSD-like folder, a session with a small budget, and errors shown in full."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import outcore as oc

settings.register_profile(
    "outcore", deadline=None, max_examples=40, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("outcore")


@pytest.fixture(autouse=True)
def session(tmp_path: Path) -> Iterator[oc.Session]:
    """A default session of 64 MiB, its scratch beside the files of the test. The folder may lie in memory on some machines."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    yield oc.configure("64MiB", scratch, 2, allow_tmpfs_scratch=True)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
