"""Compressed images become pixels; image files may lie in one folder per class."""

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.places import expand, optional
from fedssa.data.progress import progress
from fedssa.errors import DataError

CHUNK = 256  # images per task of the pool
SPLITS = {"train", "test", "val", "valid", "validation"}


def decode_images(items: Sequence[bytes | Path], name: Callable[[int], str]) -> np.ndarray:
    """Decodes images to uint8 [n, H, W, C]; `name(i)` is what errors call the i-th."""
    first = _pixels(items[0], name(0))
    x = np.empty((len(items), *first.shape), dtype=np.uint8)

    def fill(start: int) -> int:
        stop = min(start + CHUNK, len(items))
        for i in range(start, stop):
            pixels = _pixels(items[i], name(i))
            if pixels.shape != first.shape:
                forms = f"{name(i)} is {_form(pixels)} but {name(0)} is {_form(first)}"
                raise DataError(f"{forms}: all images must have one size and colour")
            x[i] = pixels
        return stop - start

    with progress("decoding images", len(items)) as step, ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(fill, range(0, len(items), CHUNK)):  # Pillow decodes without the GIL
            step(done)
    return x


def _pixels(item: bytes | Path, name: str) -> np.ndarray:
    image_module = optional("PIL.Image")
    try:
        with image_module.open(io.BytesIO(item) if isinstance(item, bytes) else item) as image:
            if image.mode[0] in "IF":  # more than 8 bits; Pillow would cut them off
                raise DataError(f"{name} has pixels of more than 8 bits (mode {image.mode}): save it as 8-bit image")
            if image.mode == "L":
                return np.asarray(image)[..., None]
            opaque = image.convert("RGBA") if "transparency" in image.info else image
            return np.asarray(opaque.convert("RGB"))
    except DataError:
        raise
    except Exception as err:  # Pillow's readers raise anything on damaged input
        raise DataError(f"{name} is not an image that Pillow can read: repair it or leave it out") from err


def _form(pixels: np.ndarray) -> str:
    height, width, channels = pixels.shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """A folder of image files with one subfolder per class, with or without train/ and test/ above."""

    dir: str

    augmentations: ClassVar[tuple[str, ...]] = ("crop", "erase")  # a mirrored image may be of another class

    def files(self) -> list[Path]:
        return [path for path, _ in self._samples()]

    def decode(self) -> Arrays:
        paths, labels = zip(*self._samples(), strict=True)
        x = decode_images(paths, lambda i: str(paths[i]))
        return arrays_from(x, labels, None, str(expand(self.dir)))

    def _samples(self) -> list[tuple[Path, str]]:
        """Finds image files and their classes; folders without images count for nothing."""
        root, suffixes = expand(self.dir), _suffixes()
        paths = [path for path in sorted(root.rglob("*")) if path.suffix.lower() in suffixes and path.is_file()]
        inner = [path.relative_to(root).parts for path in paths]  # (class, ..., name) or (split, class, ..., name)
        level = 1 if all(parts[0] in SPLITS and len(parts) > 2 for parts in inner if _counts(parts)) else 0
        found = [(path, parts[level]) for path, parts in zip(paths, inner, strict=True) if _counts(parts)]
        if not found:
            raise DataError(f"{root} holds no images: data.dir must be a folder with one subfolder of images per class")
        return found


def _counts(parts: tuple[str, ...]) -> bool:
    """Tells whether an image is in a subfolder, and not hidden."""
    return len(parts) > 1 and not any(part.startswith(".") for part in parts)


def _suffixes() -> set[str]:
    image_module = optional("PIL.Image")
    return {suffix for suffix, kind in image_module.registered_extensions().items() if kind in image_module.OPEN}
