"""python(...) is what `subprocess.run([sys.executable, ...])` is, and takes a fraction of its time.

Each program is a new process, forked from one that has imported what is not ours: torch above all. What is ours every
program imports itself, from wherever its environment says.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

NOT_OURS = ["torch", "numpy", "pydantic", "safetensors.torch", "typer", "rich.console", "rich.table", "rich.progress"]
LONGEST = 200.0  # seconds

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(NOT_OURS)


def python(
    *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs `python -c CODE` or `python -m MODULE ARGS…`."""
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("out", "err")]
        environment = dict(os.environ if env is None else env)
        program = _context.Process(target=_become, args=(args, str(cwd or Path.cwd()), environment, said))
        program.start()
        program.join(LONGEST)
        if program.exitcode is None:
            program.kill()
            program.join()
        code, texts = program.exitcode or 0, [file.read_text() if file.exists() else "" for file in said]
        program.close()
    return subprocess.CompletedProcess([sys.executable, *args], code, *texts)


def _become(args: tuple[str, ...], cwd: str, env: dict[str, str], said: list[Path]) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("fedssa", "tests")]:
        del sys.modules[name]  # of this file
    for standard, file in enumerate(said, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    own = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [cwd, *filter(None, own), *(folder for folder in sys.path if folder and folder not in own)]
    kind, what, *rest = args
    sys.argv = [kind if kind == "-c" else what, *rest]
    sys.orig_argv[:] = [sys.executable, *args]
    try:
        if kind == "-c":
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 (what a test has written)
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
