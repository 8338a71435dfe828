"""python(...) is what `subprocess.run([sys.executable, ...])` is, and takes a fraction of its time.

Each program is a new process, forked from one that has imported what is not ours: torch above all. What is ours every
program imports itself, from wherever its environment says.
"""

import atexit
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

NOT_OURS = ["torch", "numpy", "pydantic", "safetensors.torch", "typer", "rich.console", "rich.table", "rich.progress"]
LONGEST = 200.0  # seconds

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(NOT_OURS)


class Program:
    """`python -c CODE`, `python -m MODULE` or `python FILE`, started; no file may grow beyond `limit` bytes."""

    def __init__(
        self, *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, limit: int | None = None
    ) -> None:
        self._args, self._folder = args, tempfile.TemporaryDirectory()
        self._said = [Path(self._folder.name, name) for name in ("out", "err")]
        environment = dict(os.environ if env is None else env)
        self._process = _context.Process(
            target=_become, args=(args, str(cwd or Path.cwd()), environment, self._said, limit)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.exitcode is None

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.runs:
            os.kill(self.pid, how)

    def end(self) -> "subprocess.CompletedProcess[str]":
        """Waits for it, and says what became of it."""
        self._process.join(LONGEST)
        if self.runs:
            self._process.kill()
            self._process.join()
        code, texts = self._process.exitcode or 0, [file.read_text() if file.exists() else "" for file in self._said]
        self._process.close()
        self._folder.cleanup()
        return subprocess.CompletedProcess([sys.executable, *self._args], code, *texts)


def python(
    *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs `python -c CODE`, `python -m MODULE` or `python FILE`, with arguments, to its end."""
    return Program(*args, cwd=cwd, env=env).end()


def _become(args: tuple[str, ...], cwd: str, env: dict[str, str], said: list[Path], limit: int | None) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for name in [name for name in sys.modules if name.split(".")[0] in ("fedssa", "tests")]:
        del sys.modules[name]  # of this file
    for standard, file in enumerate(said, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    own = env.get("PYTHONPATH", "").split(os.pathsep)
    kind, what, *rest = args if args[0] in ("-c", "-m") else ("", *args)
    beside = cwd if kind else str(Path(what).parent.resolve())
    sys.path[:] = [beside, *filter(None, own), *(folder for folder in sys.path if folder and folder not in own)]
    sys.argv = [kind if kind == "-c" else what, *rest]
    sys.orig_argv[:] = [sys.executable, *args]
    try:
        if kind == "-c":
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 (what a test has written)
        elif not kind:
            runpy.run_path(what, run_name="__main__")
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
