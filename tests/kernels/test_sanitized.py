"""The C code by itself, with the compiler's warnings and sanitizers: it reads and writes nothing but its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedssa.kernels import in_c

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
SOURCES = Path(in_c.__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow")
BUILDS = {
    "sanitized": ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "as it is shipped": ("-O3",),
}


def built(program: Path, compiler: str, *flags: str) -> Path:
    options = ("-std=c11", "-ffp-contract=fast", *flags, *WARNINGS, f"-I{SOURCES}")
    subprocess.run([compiler, *options, str(HERE / "sanitized.c"), "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize("flags", BUILDS.values(), ids=BUILDS)
def test_every_shape_in_buffers_of_its_size(tmp_path: Path, flags: tuple[str, ...]) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler, "this test needs a C compiler: install gcc or clang"
    program = built(tmp_path / "sanitized", compiler, *flags)
    env = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1"}  # what there is no memory for is tried, too
    done = subprocess.run([str(program)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plain")


def test_another_processor_builds_it_and_gets_the_same_numbers(tmp_path: Path) -> None:
    """ARM, emulated. It has no level but the plain one."""
    program = built(tmp_path / "arm", "aarch64-linux-gnu-gcc", "-O3", "-static")
    done = subprocess.run(["qemu-aarch64-static", str(program)], capture_output=True, text=True, check=False)  # noqa: S607
    assert (done.returncode, done.stdout) == (0, "plain\n"), done.stderr
