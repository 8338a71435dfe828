"""Real data sets, if they are on this machine: in FEDSSA_TEST_DATA, or in shared/data beside the repository."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("FEDSSA_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")


def real_data(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"{DATA / name} is not there")
