"""Millions of records are made here without Python's search for cycles among them, since they have none."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Turns the search off, which looks at all objects time and again, and takes longer than to make them.

    What was made meanwhile is old at once: only a search of everything, which gets rarer as objects get more, sees it.
    """
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.freeze()  # takes all objects out …
            gc.unfreeze()  # … and puts them back as the oldest generation, without a look at them
            gc.enable()
