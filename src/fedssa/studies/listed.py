"""What there is stands in listed.json too, so that a list is shown at once: to ask the classes takes torch.

`make docs` writes the file from the classes (`as_listed`), and a test compares the two. A method that was added since
is noticed: then the classes are asked after all.
"""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("listed.json")
METHODS = Path(__file__).parents[1] / "methods"


@dataclass(frozen=True)
class ListedMethod:
    """Says of a method what a list of them shows."""

    name: str
    cls: str  # the name of its class
    module: str
    shared: str
    models: str
    needs: list[str]
    trained_by: list[str]
    options: dict[str, Any]  # their defaults
    presets: dict[str, dict[str, Any]]  # what the name of each one fixes
    own: dict[str, dict[str, Any]]  # settings by section that it must have, whatever others have
    augments: bool  # its clients train on augmented images whatever local.augment says

    @property
    def source(self) -> Path:
        return METHODS / f"{self.module}.py"


@dataclass(frozen=True)
class ListedPart:
    """Says of a part of a recipe what a list of settings shows; a setting has key, kind, default and meaning."""

    section: str
    name: str | None
    about: str
    settings: list[list[str]]


def names() -> str:
    """Returns a hash of the file that names all methods."""
    return sha256((METHODS / "__init__.py").read_bytes()).hexdigest()


@dataclass(frozen=True)
class Listed:
    names: str  # as the function of that name returned when this was written
    methods: list[ListedMethod]
    models: dict[str, str]
    settings: list[ListedPart]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def listed() -> Listed:
    said = json.loads(FILE.read_text(encoding="utf-8"))
    if said["names"] != names():
        from fedssa.studies.catalogue import as_listed

        return as_listed()
    return Listed(
        said["names"],
        [ListedMethod(**one) for one in said["methods"]],
        said["models"],
        [ListedPart(**one) for one in said["settings"]],
    )
