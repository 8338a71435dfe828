"""Compressed images become pixels; image files may lie in one folder per class."""

import io
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.origin import PARTS, Origin, Published, described
from fedssa.data.places import expand, optional
from fedssa.data.progress import progress
from fedssa.errors import DataError

CHUNK = 256  # images per task of the pool

Size = tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]]  # height and width


def decode_images(items: Sequence[bytes | Path], name: Callable[[int], str], resize: Size | None = None) -> np.ndarray:
    """Decodes images to uint8 [n, H, W, C], or those of 16 bits to float32; `name(i)` is what errors call the i-th."""
    first = _pixels(items[0], name(0), resize)
    x = np.empty((len(items), *first.shape), dtype=first.dtype)

    def fill(start: int) -> int:
        stop = min(start + CHUNK, len(items))
        for i in range(start, stop):
            pixels = _pixels(items[i], name(i), resize)
            if (pixels.shape, pixels.dtype) != (first.shape, first.dtype):
                forms = f"{name(i)} is {_form(pixels)} but {name(0)} is {_form(first)}"
                raise DataError(
                    f"{forms}: all images must have one size and colour; data.resize = [H, W] gives one size"
                )
            x[i] = pixels
        return stop - start

    with progress("decoding images", len(items)) as step, ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(fill, range(0, len(items), CHUNK)):  # Pillow decodes without the GIL
            step(done)
    return x


def _pixels(item: bytes | Path, name: str, resize: Size | None) -> np.ndarray:
    image_module = optional("PIL.Image")
    try:
        with image_module.open(io.BytesIO(item) if isinstance(item, bytes) else item) as image:
            return _array(image, name, resize)
    except DataError:
        raise
    except Exception as err:  # Pillow's readers raise anything on damaged input
        raise DataError(f"{name} is not an image that Pillow can read: repair it or leave it out") from err


def _array(image: Any, name: str, resize: Size | None) -> np.ndarray:
    """Makes [H, W, C] of an image: bytes, or of grey values of 16 bits v / 32767.5 - 1 as float32."""
    deep = image.mode.startswith("I;16")
    if not deep and (image.mode[0] in "IF" or any(";16" in str(tile[3]) for tile in image.tile)):
        raise DataError(
            f"{name} has pixels of more than 8 bits (mode {image.mode}), which would be cut off: "
            "save it as grey image of 16 bits, or with 8 bits"
        )
    if deep:
        image = image.convert("F")
    elif image.mode != "L":
        image = (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")
    if resize is not None and (image.height, image.width) != tuple(resize):
        image = image.resize((resize[1], resize[0]), resample=2)  # bilinear, over all pixels that one covers
    pixels = np.asarray(image)
    if deep:
        pixels = (pixels / np.float32(32767.5) - 1).astype(np.float32)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _form(pixels: np.ndarray) -> str:
    height, width, channels = pixels.shape
    colour = "RGB" if channels > 1 else "grey" if pixels.dtype == np.uint8 else "grey of 16 bits"
    return f"{width}x{height} {colour}"


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Published):
    """A folder of image files with one subfolder per class, with or without train/ and test/ above.

    With `client_from = "folder"` there is a folder of every client above its classes, and above or below train/.
    """

    dir: str  # with a folder for each class
    resize: Size | None = None  # [H, W] that all images get

    augmentations: ClassVar[tuple[str, ...]] = ("crop", "erase")  # a mirrored image may be of another class

    def files(self) -> list[Path]:
        return [path for path, _, _ in self._samples()]

    def decode(self) -> Arrays:
        paths, labels, origins = zip(*self._samples(), strict=True)
        x, where = decode_images(paths, lambda i: str(paths[i]), self.resize), str(expand(self.dir))
        return described(arrays_from(x, labels, None, where), where, origins=[(origin, 1) for origin in origins])

    def _samples(self) -> list[tuple[Path, str, Origin]]:
        """Finds image files, their classes and origins; folders without images count for nothing."""
        root, suffixes = expand(self.dir), _suffixes()
        paths = [path for path in sorted(root.rglob("*")) if path.suffix.lower() in suffixes and path.is_file()]
        inner = {path: path.relative_to(root).parts for path in paths}
        folders = {path: parts[:-1] for path, parts in inner.items() if _counts(parts)}
        if not folders:
            raise DataError(f"{root} holds no images: data.dir must be a folder with one subfolder of images per class")
        levels = range(2 if self.client_from else 1)  # of what may be folders of parts
        part_level = next((level for level in levels if _are_parts(folders.values(), level)), None)
        return [(path, *self._read(path, list(words), part_level)) for path, words in folders.items()]

    def _read(self, path: Path, words: list[str], part_level: int | None) -> tuple[str, Origin]:
        part = None if part_level is None else PARTS[words.pop(part_level).lower()]
        if self.client_from is None:
            return words[0], Origin(part)
        if self.client_from != "folder" or len(words) < 2:
            raise DataError(
                f'{path}: images need data.client_from = "folder", and a folder of a client above the class'
            )
        return words[1], Origin(part, words[0])


def _are_parts(folders: Collection[tuple[str, ...]], level: int) -> bool:
    return all(len(words) > level + 1 and words[level].lower() in PARTS for words in folders)


def _counts(parts: tuple[str, ...]) -> bool:
    """Tells whether an image is in a subfolder, and not hidden."""
    return len(parts) > 1 and not any(part.startswith(".") for part in parts)


def _suffixes() -> set[str]:
    image_module = optional("PIL.Image")
    return {suffix for suffix, kind in image_module.registered_extensions().items() if kind in image_module.OPEN}
