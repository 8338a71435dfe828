"""Data sets of the Hugging Face `datasets` library come from a folder where they were saved, or from the hub."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from fedssa.data.arrays import Arrays
from fedssa.data.images import Size
from fedssa.data.origin import Origin, Published, part_of
from fedssa.data.parquet import read_parquet
from fedssa.data.places import expand, optional
from fedssa.errors import DataError


@dataclass(frozen=True, kw_only=True)
class HuggingFace(Published):
    """A data set of the Hugging Face library: a folder of save_to_disk, or a name on the hub.

    Its splits are the published parts; images, labels and other columns are read as from parquet files.
    """

    dir: str | None = None  # a folder that `save_to_disk` wrote
    dataset: str | None = None  # or a name on the hub, or of a folder that `load_dataset` reads
    config: str | None = None  # which of a data set's configurations
    image: str | None = None  # column of inputs; none: guessed when there is one candidate
    label: str | None = None  # column of labels; none: guessed when there is one candidate
    resize: Size | None = None  # [H, W] that all images get

    augmentations: ClassVar[tuple[str, ...]] = ("crop", "erase")  # a mirrored image may be of another class

    @override
    def __str__(self) -> str:
        return str(self.dir or self.dataset)

    def files(self) -> list[Path]:
        if (self.dir is None) == (self.dataset is None):
            raise DataError("data.name = 'hf': say either data.dir (a folder of save_to_disk) or data.dataset (a name)")
        return [] if self.dir is None else sorted(path for path in expand(self.dir).rglob("*") if path.is_file())

    def decode(self) -> Arrays:
        splits = self._load()
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{name}.parquet" for name in splits]
            for file, split in zip(files, splits.values(), strict=True):
                split.to_parquet(str(file))
            origins = [Origin(part_of(name)) for name in splits]
            try:
                return read_parquet(files, self.image, self.label, resize=self.resize, origins=origins)
            except DataError as error:
                said = str(error)
                for name, file in zip(splits, files, strict=True):  # of which nobody knows
                    said = said.replace(str(file), str(self) if len(files) == 1 else f"{self}, split {name!r},")
                raise DataError(said.replace(folder, str(self))) from error

    def _load(self) -> dict[str, Any]:
        library = optional("datasets", extra="hf")
        try:
            library.disable_progress_bars()
            found = (
                library.load_dataset(self.dataset, self.config)
                if self.dir is None
                else library.load_from_disk(str(expand(self.dir)))
            )
        except Exception as error:  # the library and its transport raise anything
            why = (str(error).splitlines() or [""])[0][:200]
            raise DataError(
                f"{self} cannot be loaded ({type(error).__name__}: {why}); on a machine without the hub, "
                "save it with save_to_disk elsewhere and set data.dir"
            ) from error
        return dict(found) if isinstance(found, dict) else {"all": found}
