"""The progress of long steps is drawn on a terminal and nowhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how much more is done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda step: bar.advance(task, step)


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
