"""The C kernels are optional: without a compiler the package installs, and torch does their work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

RUN = f"""
import fedssa
from fedssa.kernels import resolve, why_slow
result = fedssa.run({tiny(models={"archs": ["cnn-5"], "width": 8}, rounds={"total": 1})!r}, out="run", workers=2)
print(fedssa.__file__, resolve("auto"), why_slow(), len(result.records), sep="\\n")
"""


def installed(folder: Path, **env: str) -> Path:
    """A copy of the sources, none of it built, installed where only PYTHONPATH finds it."""
    source, site = folder / "source", folder / "site"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(source)]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


def python(site: Path, *args: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "FEDSSA_KERNEL"}
    env |= {"PYTHONPATH": str(site), "FEDSSA_CACHE": str(site.parent / "cache")}
    command = [sys.executable, *args]
    done = subprocess.run(command, env=env, cwd=site.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler_torch_does_the_work(tmp_path: Path, compiler: str) -> None:
    site = installed(tmp_path, CC=compiler)
    assert not list(site.rglob("_native*"))
    where, kernel, loss, num_records = python(site, "-c", RUN).splitlines()
    assert where.startswith(str(site))
    assert kernel == "torch"
    assert loss == "there is no C kernel (it was not built); install a C compiler (gcc or clang), then fedssa anew"
    assert num_records == "2"
    assert "there is no C kernel" in " ".join(python(site, "-m", "fedssa", "doctor").split())


def test_with_a_compiler_it_is_built(tmp_path: Path) -> None:
    site = installed(tmp_path)
    assert len(list(site.rglob("_native*"))) == 1
    where, kernel, _, num_records = python(site, "-c", RUN.replace('resolve("auto")', 'resolve("c")')).splitlines()
    assert where.startswith(str(site))
    assert kernel.startswith("c-")
    assert num_records == "2"
