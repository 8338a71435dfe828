"""Here it is settled who owns which samples: what is public, what each client holds, and how a client's are split."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from fedssa.core.seeds import numpy_rng
from fedssa.data import Dataset
from fedssa.errors import DataError
from fedssa.partition import (
    ByColumn,
    ByLabels,
    Indices,
    LocalSplit,
    SampleTable,
    dealt_rows,
    share_out,
    split_by_class,
    stratified,
)
from fedssa.settings.recipe import PublicSlice, Settings


class Owners:
    """All indices are places in the data set, in canonical order."""

    def __init__(self, settings: Settings, dataset: Dataset) -> None:
        self._seed, self._y, self._parts = settings.seed, np.asarray(dataset.y), dataset.parts
        self._by_labels, self._share = isinstance(settings.partition, ByLabels), settings.data_share
        self.used = used_in(settings, dataset)
        self.public, private = taken_away(settings, self._y, self.used, dataset.parts)
        name, rng = settings.table["partition"]["name"], numpy_rng(settings.seed, "partition")
        with self._share_told():
            dealt = dealt_rows(settings.partition, name, sample_table(dataset, private), rng)
        place = np.empty(len(dataset.rows), dtype=np.int64)
        place[dataset.rows] = np.arange(len(dataset.rows))
        self.names = list(dealt)
        self._dealt = [np.sort(place[rows]) for rows in dealt.values()]
        self._published = {part: self._dealt_of(part) for part in ("train", "val", "test")}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def given_names(self) -> tuple[str, ...]:
        """Returns the names of the clients, or none if they are only called by their numbers."""
        return () if self.names == [str(k) for k in range(len(self.names))] else tuple(self.names)

    def split(self, client: int) -> LocalSplit:
        published = {part: found[client] for part, found in self._published.items() if found is not None}
        train = published.pop("train", self._dealt[client])
        rng = numpy_rng(self._seed, "split", client=client)
        with self._share_told():
            return split_by_class(train, self._y, rng, client=self.names[client], **published)

    def held(self, client: int) -> Indices:
        """Returns all samples of a client, whatever it uses them for."""
        split = self.split(client)
        return np.sort(np.concatenate((split.train, split.val, split.test)))

    @cached_property
    def digest(self) -> str:
        """Identifies who holds what, and is empty where that follows from settings, inputs and labels alone."""
        if self._by_labels and self._parts is None:
            return ""
        digest = hashlib.sha256()
        for client, name in enumerate(self.names):
            split = self.split(client)
            sizes = len(split.train), len(split.val), len(split.test)
            digest.update(f"{name!r} {sizes}\n".encode())
            for part in (split.train, split.val, split.test):
                digest.update(part.tobytes())
        return digest.hexdigest()

    @contextmanager
    def _share_told(self) -> Iterator[None]:
        """Says of too few samples that most of them were left out."""
        try:
            yield
        except DataError as error:
            if self._share == 1:
                raise
            left = f"{len(self.used):,} of {len(self._y):,} samples"
            raise DataError(f"{error}; data.share = {self._share:g} leaves {left}") from error

    def _dealt_of(self, part: str) -> list[Indices] | None:
        """Returns what each client holds of a published part, or None if there is no such part.

        If the partition has dealt none of its samples, they are shared out by what clients have to train on.
        """
        if self._parts is None or part not in self._parts:
            return None
        dealt = [indices[self._parts[indices] == part] for indices in self._dealt]
        if part == "train" or any(len(indices) for indices in dealt):
            return dealt
        trained = [indices[self._parts[indices] == "train"] for indices in self._dealt]
        num_classes = int(self._y.max()) + 1
        held = np.stack([np.bincount(self._y[indices], minlength=num_classes) for indices in trained], axis=1)
        whole = self.used[self._parts[self.used] == part]
        return share_out(whole, self._y, held, numpy_rng(self._seed, "test" if part == "test" else "val"))


def sample_table(dataset: Dataset, private: Indices) -> SampleTable:
    """Makes the table that a partition goes by: the private samples in the order of the source."""
    order = np.argsort(dataset.rows[private])
    chosen = private[order]
    return SampleTable(
        rows=dataset.rows[chosen],
        labels=np.asarray(dataset.y)[chosen],
        class_names=dataset.class_names,
        columns={name: column[chosen] for name, column in dataset.columns.items()},
        parts=None if dataset.parts is None else dataset.parts[chosen],
        canonical=np.argsort(order),
    )


def used_in(settings: Settings, dataset: Dataset) -> Indices:
    """Draws the samples that a run uses: data.share of each class, within each published part."""
    everything = np.arange(len(dataset.y))
    if settings.data_share == 1:
        return everything
    strata, share = np.asarray(dataset.y), settings.data_share
    if dataset.parts is not None:
        strata = strata + dataset.num_classes * np.unique(dataset.parts, return_inverse=True)[1]
    drawn = stratified(strata, share, numpy_rng(settings.seed, "share"), leave=0)
    by = settings.partition
    if isinstance(by, ByColumn) and by.column in dataset.columns:
        column = dataset.columns[by.column]
        if len(lost := np.setdiff1d(column, column[drawn])):
            others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise DataError(
                f"data.share = {share:g}: leaves no samples of client {lost[0]}{others}; use a larger share"
            )
    return drawn


def taken_away(
    settings: Settings, y: Indices, used: Indices, parts: np.ndarray | None = None
) -> tuple[Indices, Indices]:
    """Returns which samples are public, and which are left to be dealt; what was published for test stays private."""
    if not isinstance(settings.public, PublicSlice):
        return np.arange(0), used
    able = used if parts is None else used[parts[used] == "train"]
    chosen = able[stratified(y[able], settings.public.share, numpy_rng(settings.seed, "public"))]
    return chosen, np.setdiff1d(used, chosen)
