"""What a newcomer does: clone, `make demo`, look at the result. On a machine that has nothing of ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer") / "fedssa"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)  # noqa: S607
    return folder


def in_clone(clone: Path, *command: str) -> str:
    """With an empty cache, no data, and none of the environment that runs this test."""
    keep = ("PATH", "HOME", "LANG", "TMPDIR")
    pip = {
        name: value for name, value in os.environ.items() if name in keep or name.startswith(("PIP_", "SSL_", "HTTP"))
    }
    pip["PATH"] = os.pathsep.join(p for p in pip["PATH"].split(os.pathsep) if ".venv" not in p)
    env = {**pip, "FEDSSA_CACHE": str(clone.parent / "cache")}
    done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("time", ["first", "second"])
def test_make_demo_ends_with_a_table_a_picture_and_models(clone: Path, time: str) -> None:
    out = in_clone(clone, "make", "demo")
    for method in ("standalone", "standalone-scaled", "fedssa"):
        row = re.search(rf"^ {method} +(\d+\.\d) ", out, flags=re.MULTILINE)
        assert row, out
        assert float(row[1]) > 50  # of two digits a client: it has learnt
    assert (clone / "runs/demo/demo.png").read_bytes().startswith(b"\x89PNG")
    load = re.search(r"import fedssa; model = fedssa\.load_client\(.*\)", out)
    assert load, out
    in_clone(clone, ".venv/bin/python", "-c", load[0] + "; assert model.header.out_features == 10")


def test_a_source_distribution_installs_and_runs(clone: Path, tmp_path: Path) -> None:
    """What we would publish: with its embedded data, away from the source tree."""
    python = str(tmp_path / "venv/bin/python")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    constraints = str(clone / "constraints.txt")
    in_clone(clone, python, "-m", "pip", "install", "--quiet", "-c", constraints, "build")
    in_clone(clone, python, "-m", "build", "--sdist", "--outdir", str(tmp_path))
    (archive,) = tmp_path.glob("fedssa-*.tar.gz")
    in_clone(clone, python, "-m", "pip", "install", "--quiet", "-c", constraints, str(archive))
    recipe = (clone / "recipes/quickstart.toml").read_text().replace("total = 40", "total = 1")
    (tmp_path / "one.toml").write_text(recipe)
    out = in_clone(
        clone.parent,
        str(tmp_path / "venv/bin/fedssa"),
        "run",
        str(tmp_path / "one.toml"),
        "--out",
        str(tmp_path / "run"),
    )
    assert "finished, 1 of 1 rounds" in out
    examined = in_clone(clone.parent, str(tmp_path / "venv/bin/fedssa"), "doctor")
    assert "samples/s" in examined
    assert "no C kernel" not in " ".join(examined.split())  # the C sources were in it
