"""Data files of every format, damaged: they are read, or refused in one line."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from typing_extensions import override

from fedssa.data import Source
from fedssa.data.arrays import check
from fedssa.errors import FedSSAError
from fedssa.settings.recipe import parse_settings
from tests.fuzz.case import Case, Part, raised, scratch
from tests.fuzz.mutate import damaged_bytes

ODD_CELLS = ("", "nan", "inf", "1e999", "x" * 5000, "9" * 5000, '"', "\0", "a,b", "2024-01-01", "-0", "\ufeff")


def write_all(folder: Path) -> dict[str, dict[str, Any]]:
    """Writes a small file of every format; returns what [data] says of each."""
    rng, y = np.random.default_rng(0), np.arange(40) % 4
    x = rng.normal(y[:, None], 1.0, (40, 3)).astype(np.float32)
    np.savez(folder / "a.npz", allow_pickle=False, x=x, y=y)
    rows = [",".join([*(f"{v:.3f}" for v in row), str(label)]) for row, label in zip(x, y, strict=True)]
    (folder / "a.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    pq.write_table(pa.table({"x": x.tolist(), "label": y}), folder / "a.parquet")
    for label in range(2):
        (folder / "images" / str(label)).mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "images" / str(label) / f"{i}.png")
    return {
        "a.npz": {"name": "npz", "file": str(folder / "a.npz")},
        "a.csv": {"name": "csv", "file": str(folder / "a.csv"), "label": "label"},
        "a.parquet": {
            "name": "parquet",
            "dir": str(folder / "a.parquet"),
            "image": "x",
            "label": "label",
            "kind": "tensor",
        },
        "images/0/0.png": {"name": "images", "dir": str(folder / "images")},
    }


def _source(section: dict[str, Any]) -> Source:
    return parse_settings({"data": section, "partition": {"name": "iid", "clients": 2}}).data


class Data(Part):
    def __init__(self) -> None:
        self._folder = scratch()
        self._place = Path(self._folder.name)
        self._sources = {name: _source(section) for name, section in write_all(self._place).items()}
        self._sound = {name: (self._place / name).read_bytes() for name in self._sources}
        for source in self._sources.values():  # what is not damaged is read
            check(source.decode(), "data")

    @override
    def case(self, rng: random.Random) -> Case:
        name = rng.choice(sorted(self._sources))
        return read(self._place / name, _damaged(name, self._sound[name], rng), self._sound[name], self._sources[name])

    @override
    def close(self) -> None:
        self._folder.cleanup()


def _damaged(name: str, content: bytes, rng: random.Random) -> bytes:
    if not name.endswith(".csv") or rng.random() < 0.3:
        return damaged_bytes(content, rng)
    lines = content.decode().split("\n")
    at = rng.randrange(len(lines))
    cells = lines[at].split(",")
    cells[rng.randrange(len(cells))] = rng.choice(ODD_CELLS)
    lines[at] = ",".join(cells)
    return "\n".join(lines).encode()


def read(file: Path, content: bytes, sound: bytes, source: Source) -> Case:
    file.write_bytes(content)
    try:
        check(source.decode(), "data")
    except FedSSAError as error:
        line = str(error)
        return Case("refused") if "\n" not in line else Case("exception", f"{file.name}: {line!r}")
    except Exception as error:  # what the campaign looks for
        return Case("exception", f"{file.name}: {raised(error)}")
    finally:
        file.write_bytes(sound)
    return Case("legal")
