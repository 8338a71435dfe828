"""Everything else is in pyproject.toml. The C kernels are optional: without a compiler torch does their work."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "fedssa.kernels._native",
            sources=["src/fedssa/kernels/batch.c", "src/fedssa/kernels/conv_relu_pool.c"],
            depends=["src/fedssa/kernels/conv_relu_pool.h"],
            extra_compile_args=["-O3", "-std=c11", "-ffp-contract=fast"],
            optional=True,
        )
    ]
)
