"""A shell that completes words asks for names here at each TAB, so nothing imports torch."""

from collections.abc import Iterable
from pathlib import Path


def methods(incomplete: str) -> list[str]:
    """Returns methods and presets."""
    from fedssa.studies.listed import listed

    return _fitting((name for method in listed().methods for name in (method.name, *method.presets)), incomplete)


def several_methods(incomplete: str) -> list[str]:
    """Returns methods for the last of names that commas separate; what stands before it stays."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in methods(last)]


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


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
