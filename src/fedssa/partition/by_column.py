from dataclasses import dataclass
from typing import final

import numpy as np

from fedssa.errors import DataError
from fedssa.partition.partition import Indices, NumClients, SampleTable


@final
@dataclass(frozen=True, kw_only=True)
class ByColumn:
    """One client for each value of a column of the data, and of that name; they are numbered in sorted order."""

    column: str = "client"  # whose values are the clients' names
    clients: NumClients | None = None  # what it must come to; None: whatever it comes to

    def deal(self, samples: SampleTable, rng: np.random.Generator) -> dict[str, Indices]:
        if self.column not in samples.columns:
            has = f"they have {', '.join(samples.columns)}" if samples.columns else "they have none beside the labels"
            raise DataError(f"partition.column = {self.column!r}: the data have no such column; {has}")
        values, owners = np.unique(samples.columns[self.column], return_inverse=True)
        if "" in values.tolist():
            row = samples.rows[owners == values.tolist().index("")][0]
            raise DataError(f"partition.column = {self.column!r}: row {row} of the data has no value there")
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners))[:-1]
        return dict(zip(map(str, values.tolist()), np.split(samples.rows[order], ends), strict=True))
