"""Data that have no reader here come from a user's own function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.inputs import Kinds
from fedssa.data.origin import SPLIT, Splits, described
from fedssa.errors import DataError
from fedssa.imports import imported

OTHERS = ("x", "y", "class_names", "kind")  # what a mapping holds beside columns


@dataclass(frozen=True, kw_only=True)
class FromFunction:
    """An own function, `package.module:function`, that returns (x, y), a mapping with x, y and columns, or Arrays.

    x is an array, or a dict of arrays by the names under which a model takes them.
    """

    function: str | Callable[..., Any]  # a recipe can only name it
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    splits: Splits = "keep"  # as of other sources: "pool" forgets the parts that a column `split` tells

    @override
    def __str__(self) -> str:
        return self.function if isinstance(self.function, str) else name_of(self.function)

    def options(self) -> dict[str, Any]:
        """Returns what a recipe says beside the function's name."""
        return {**self.kwargs, "splits": self.splits}

    def files(self) -> list[Path]:
        return []  # what it reads is unknown, so its result is the key of the cache

    def decode(self) -> Arrays:
        result, where = self.call(), str(self)
        return described(arrays_from(*parts_of(result, where)), where, columns_of(result))

    def call(self) -> Any:
        """Returns what the function returns."""
        function = _imported(self.function) if isinstance(self.function, str) else self.function
        try:
            return function(**self.kwargs)
        except Exception as err:
            raise DataError(f"{self} failed: {type(err).__name__}: {err}") from err


def name_of(function: Callable[..., Any]) -> str:
    """Returns what a user calls a function; an object that can be called goes by its class."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def _imported(path: str) -> Any:
    try:
        found = imported(path)
    except Exception as error:  # a user's module may raise anything
        raise DataError(
            f"{path} cannot be imported ({error}): write package.module:function or file.py:function"
        ) from error
    if not callable(found):
        raise DataError(f"{path} is no function")
    return found


def parts_of(result: object, where: str) -> tuple[Any, Any, Sequence[str] | None, str, Kinds]:
    """Returns x, y, the names of classes, `where` and the kind, as `arrays_from` takes them."""
    if isinstance(result, Arrays):
        return result.x, result.y, result.class_names, where, result.kind
    if isinstance(result, Mapping) and {"x", "y"} <= result.keys():
        return result["x"], result["y"], result.get("class_names"), where, result.get("kind", "image")
    if isinstance(result, tuple) and len(result) == 2:
        return *result, None, where, "image"
    raise DataError(
        f"{where}: gave a {type(result).__name__}; "
        "it should be (x, y) or a mapping with x, y[, class_names, kind, columns]"
    )


def columns_of(result: object) -> dict[str, Any]:
    """Returns what is told of samples beside x and y; the parts that they were published in are a column, too."""
    if isinstance(result, Arrays):
        return {**result.columns, **({} if result.parts is None else {SPLIT: result.parts})}
    if isinstance(result, Mapping):
        return {str(name): values for name, values in result.items() if name not in OTHERS}
    return {}
