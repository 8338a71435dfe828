"""What a partition answers is believed only if it can be true."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedssa.errors import DataError
from fedssa.partition import ByColumn, SampleTable, dealt_rows

TABLE = SampleTable(np.array([0, 1, 2, 4, 5]), np.array([0, 1, 0, 1, 0]), ("a", "b"))  # row 3 is public


@dataclass(frozen=True)
class Answers:
    answer: Any
    clients: int | None = None

    def deal(self, samples: SampleTable, rng: np.random.Generator) -> Any:
        return self.answer(samples) if callable(self.answer) else self.answer


def dealt(answer: Any, clients: int | None = None) -> dict[str, list[int]]:
    rows = dealt_rows(Answers(answer, clients), "my:own", TABLE, np.random.default_rng(0))
    return {name: found.tolist() for name, found in rows.items()}


def test_clients_are_called_by_their_numbers_or_by_the_names_they_are_given() -> None:
    assert dealt([[4, 0], np.array([1])], 2) == {"0": [4, 0], "1": [1]}
    assert dealt({" north  wing ": [0], "süd": (2, 1)}) == {"north wing": [0], "süd": [2, 1]}
    assert dealt(np.array([[0, 1], [2, 5]])) == {"0": [0, 1], "1": [2, 5]}


def failing(samples: SampleTable) -> Any:
    return [samples.columns["nowhere"]]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (failing, "deal failed: KeyError: 'nowhere'"),
        (None, "deal returned NoneType; it should be a list of arrays of rows, one a client"),
        ("01", "deal returned str; it should be a list"),
        ([[0]], "deal returned 1 client; partition.clients = 2"),
        ([[0], []], "client 1 gets no samples"),
        ([[0], [1, 6]], "client 1 gets row 6; rows are numbered 0 to 5"),
        ([[0], [-1, 1]], "client 1 gets row -1; rows are numbered 0 to 5"),
        ([[0], [1, 3]], "client 1 gets row 3, which is public or left out; deal only samples.rows"),
        ([[0, 1], [2, 1]], "clients 0 and 1 both get row 1; each row is dealt at most once"),
        ([[0], [2, 1, 2]], "client 1 gets row 2 twice; each row is dealt at most once"),
        ([[0], [0.5]], r"client 1 gets rows that are float64 \[1\]; they should be whole numbers"),
        ([[0], [[1], [2, 4]]], "client 1 gets rows that are float64"),
        ([[0], [True]], "client 1 gets rows that are bool"),
        ({"a": [0], "a ": [1]}, "two clients have the name a; spaces at the ends do not count"),
        ({"a": [0], "\x1b[31mred": [1]}, r"'\\x1b\[31mred' cannot be a client's name"),
        ({"a": [0], "": [1]}, "'' cannot be a client's name"),
        ({"a": [0], "b" * 61: [1]}, "'bbb.* cannot be a client's name; it should have 1 to 60 characters"),
    ],
)
def test_wrong_answers_are_told_in_one_line(answer: Any, reason: str) -> None:
    with pytest.raises(DataError, match=f"^partition.name = 'my:own': {reason}") as error:
        dealt(answer, 2)
    assert "\n" not in str(error.value)


def by_column(values: list[Any], column: str = "hospital") -> dict[str, list[int]]:
    table = SampleTable(np.arange(len(values)), np.zeros(len(values), np.int64), ("a",), {"hospital": np.array(values)})
    rows = dealt_rows(ByColumn(column=column), "column", table, np.random.default_rng(0))
    return {name: found.tolist() for name, found in rows.items()}


@pytest.mark.parametrize(
    ("values", "clients"),
    [
        (["north", "east", "north"], {"east": [1], "north": [0, 2]}),
        ([10, 9, 10], {"9": [1], "10": [0, 2]}),
    ],
)
def test_a_column_names_its_clients(values: list[Any], clients: dict[str, list[int]]) -> None:
    assert by_column(values) == clients


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda: by_column(["a"], "clinic"), "partition.column = 'clinic': the data have no such column; .* hospital$"),
        (lambda: by_column(["a", ""]), "partition.column = 'hospital': row 1 of the data has no value there"),
        (lambda: by_column(["a", "a "]), "partition.name = 'column': two clients have the name a"),
    ],
)
def test_a_column_that_cannot_tell_clients_apart(wrong: Callable[[], object], reason: str) -> None:
    with pytest.raises(DataError, match=f"^{reason}"):
        wrong()
