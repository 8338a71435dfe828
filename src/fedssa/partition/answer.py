"""What a partition answers is checked before anybody believes it: it may be a user's own code."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedssa.errors import DataError, FedSSAError
from fedssa.partition.partition import ByLabels, Indices, Partition, SampleTable

LONGEST_NAME = 60


def dealt_rows(partition: Partition, name: str, samples: SampleTable, rng: np.random.Generator) -> dict[str, Indices]:
    """Returns the rows of each client by its name; clients without names are called by their numbers."""
    try:
        answer: Any = partition.deal(samples, rng)
    except FedSSAError:
        raise
    except Exception as error:  # a user's own partition may raise anything
        raise DataError(f"partition.name = {name!r}: deal failed: {type(error).__name__}: {error}") from error
    try:
        named = answer if isinstance(answer, Mapping) else dict(enumerate(_listed(answer)))
        return _checked({client: _numbers(client, rows) for client, rows in named.items()}, partition, samples)
    except ValueError as error:
        raise DataError(f"partition.name = {name!r}: {error}") from error


def _listed(answer: Any) -> Sequence[Any]:
    if isinstance(answer, (Sequence, np.ndarray)) and not isinstance(answer, str):
        return answer  # type: ignore[return-value]
    raise ValueError(f"deal returned {type(answer).__name__}; it should be a list of arrays of rows, one a client")


def _numbers(client: object, rows: Any) -> Indices:
    try:
        found = np.asarray(rows)
    except ValueError:  # numpy makes no array of lists of different lengths
        found = np.empty((0, 0))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        form = f"{found.dtype} {list(found.shape)}"
        raise ValueError(f"client {client!a} gets rows that are {form}; they should be whole numbers [n]")
    return found.astype(np.int64)


def _checked(dealt: dict[Any, Indices], partition: Partition, samples: SampleTable) -> dict[str, Indices]:
    names = clean_names(list(dealt))
    if partition.clients is not None and len(names) != partition.clients:
        raise ValueError(
            f"deal returned {len(names)} client{'s' * (len(names) != 1)}; partition.clients = {partition.clients}"
        )
    if not names:
        raise ValueError("deal returned no clients")
    last = int(samples.rows.max(initial=-1))
    known, owner = np.zeros(last + 1, dtype=np.bool_), np.full(last + 1, -1)
    known[samples.rows] = True
    for k, (name, rows) in enumerate(zip(names, dealt.values(), strict=True)):
        if not len(rows) and isinstance(partition, ByLabels):
            continue  # it has too many clients, which the split of what this one has tells better
        _check_rows(name, rows, known, last)
        if not getattr(partition, "overlaps", False):
            _check_owners(k, rows, owner, names)
    return dict(zip(names, dealt.values(), strict=True))


def _check_rows(name: str, rows: Indices, known: np.ndarray, last: int) -> None:
    if not len(rows):
        raise ValueError(f"client {name} gets no samples")
    if rows.min() < 0 or rows.max() > last:
        wrong = rows.min() if rows.min() < 0 else rows.max()
        raise ValueError(f"client {name} gets row {wrong}; rows are numbered 0 to {last}")
    if not known[rows].all():
        raise ValueError(
            f"client {name} gets row {rows[~known[rows]][0]}, which is public or left out; deal only samples.rows"
        )


def _check_owners(k: int, rows: Indices, owner: Indices, names: Sequence[str]) -> None:
    """Refuses a row that somebody has already, and notes who has these now."""
    values, counts = np.unique(rows, return_counts=True)
    if counts.max() > 1:
        raise ValueError(f"client {names[k]} gets row {values[counts.argmax()]} twice; each row is dealt at most once")
    if (taken := owner[rows] >= 0).any():
        row = rows[taken][0]
        both = f"{names[owner[row]]} and {names[k]}"
        raise ValueError(f"clients {both} both get row {row}; each row is dealt at most once")
    owner[rows] = k


def clean_names(names: Sequence[object]) -> list[str]:
    """Makes names of one line; they go to terminals, pages and files of settings, so no codes are let through."""
    cleaned = [" ".join(str(name).split()) for name in names]
    for name in cleaned:
        if not name or not name.isprintable() or len(name) > LONGEST_NAME:
            raise ValueError(
                f"{name[:LONGEST_NAME]!a} cannot be a client's name; "
                f"it should have 1 to {LONGEST_NAME} characters that can be printed"
            )
    if len(set(cleaned)) < len(cleaned):
        twice = Counter(cleaned).most_common(1)[0][0]
        raise ValueError(f"two clients have the name {twice}; spaces at the ends do not count")
    return cleaned
