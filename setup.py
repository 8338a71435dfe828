"""Everything else is in pyproject.toml. The C kernels are optional: without a compiler torch does their work."""

from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup

FILES = sorted(Path("src/fedssa/kernels").glob("*.[ch]"))
DIGEST = sha256(b"".join(file.read_bytes() for file in FILES)).hexdigest()  # kernels/in_c.py refuses a stale library

setup(
    ext_modules=[
        Extension(
            "fedssa.kernels._native",
            sources=[str(file) for file in FILES if file.suffix == ".c"],
            depends=[str(file) for file in FILES if file.suffix == ".h"],
            extra_compile_args=["-O3", "-std=c11", "-ffp-contract=fast"],
            define_macros=[("FEDSSA_SOURCES", f'"{DIGEST}"')],
            optional=True,
        )
    ]
)
