"""Real data sets, if they are on this machine: in FEDSSA_TEST_DATA, or in shared/data beside the repository."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

DATA = Path(os.environ.get("FEDSSA_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
Test = TypeVar("Test", bound=Callable[..., None])


def real_data(name: str) -> Callable[[Test], Test]:
    """Marks a test for `make test-system`: pip has no such data, and reading them takes a while."""
    absent = pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"{DATA / name} is not there")
    return lambda test: pytest.mark.system(absent(test))
