"""Data that have no reader here come from a user's own function."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.origin import SPLIT, Splits, described
from fedssa.errors import DataError

OTHERS = ("x", "y", "class_names", "kind")  # what a mapping holds beside columns


@dataclass(frozen=True, kw_only=True)
class FromFunction:
    """An own function, `package.module:function`, that returns (x, y), a mapping with x, y and columns, or Arrays.

    x is an array, or a dict of arrays by the names under which a model takes them.
    """

    function: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    splits: Splits = "keep"  # as of other sources: "pool" forgets the parts that a column `split` tells

    @override
    def __str__(self) -> str:
        return self.function

    def options(self) -> dict[str, Any]:
        """Returns what a recipe says beside the function's name."""
        return {**self.kwargs, "splits": self.splits}

    def files(self) -> list[Path]:
        return []  # what it reads is unknown, so its result is the key of the cache

    def decode(self) -> Arrays:
        function = _imported(self.function)
        try:
            result = function(**self.kwargs)
        except Exception as err:
            raise DataError(f"{self.function} failed: {type(err).__name__}: {err}") from err
        return _arrays(result, self.function)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as err:
        raise DataError(f"{path} cannot be imported ({err}): write package.module:function") from err
    if not callable(found):
        raise DataError(f"{path} is no function")
    return found


def _arrays(result: object, where: str) -> Arrays:
    if isinstance(result, Arrays):
        made = arrays_from(result.x, result.y, result.class_names, where, result.kind)
        parts = {} if result.parts is None else {SPLIT: result.parts}
        return described(made, where, {**result.columns, **parts})
    if isinstance(result, Mapping) and {"x", "y"} <= result.keys():
        kind = result.get("kind", "image")
        columns = {str(name): values for name, values in result.items() if name not in OTHERS}
        return described(arrays_from(result["x"], result["y"], result.get("class_names"), where, kind), where, columns)
    if isinstance(result, tuple) and len(result) == 2:
        return arrays_from(*result, None, where)
    raise DataError(
        f"{where} returned {type(result).__name__}: return (x, y) or a mapping with x, y[, class_names, kind, columns]"
    )
