"""What can be said of Ray without Ray; the rest is in system/test_ray.py."""

import sys
from pathlib import Path

import pytest

import fedssa
from fedssa.errors import SettingsError
from tests.tiny import tiny


def test_without_ray_the_extra_is_named_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(SettingsError, match=r"pip install 'fedssa\[ray\]'"):
        fedssa.run(tiny(), out=tmp_path / "run", workers=2, ray="local")
    assert not list(tmp_path.iterdir())
