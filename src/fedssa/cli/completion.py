"""A shell that completes words asks for names here at each TAB, so nothing imports torch: sources are read instead."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

METHODS = Path(__file__).parents[1] / "methods"


def methods(incomplete: str) -> list[str]:
    """Returns methods and presets: the keys of METHODS, and of `presets` in the file of each method."""
    files = [METHODS / "__init__.py", *sorted(METHODS.glob("[!_]*.py"))]
    names = [name for file in files for name in _keys(file, "METHODS" if file.stem == "__init__" else "presets")]
    return _fitting(names, incomplete)


def recipes(incomplete: str) -> list[str]:
    return _fitting(
        (str(path) for path in sorted(Path().glob("*.toml")) + sorted(Path("recipes").rglob("*.toml"))), incomplete
    )


def runs(incomplete: str) -> list[str]:
    """Returns run directories below `runs`."""
    return _fitting((str(path.parent) for path in sorted(Path("runs").rglob("settings.json"))), incomplete)


def experiments(incomplete: str) -> list[str]:
    from fedssa.studies.paper import EXPERIMENTS

    return _fitting(EXPERIMENTS, incomplete)


def _keys(file: Path, name: str) -> Iterator[str]:
    """Yields the keys of the dict that a file, or a class in it, gives this name."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.Dict(keys=keys)) if found == name:
                yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
