import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssa.data.arrays import Arrays, arrays_from, canonical, check, digest_of
from fedssa.errors import DataError


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=30), st.randoms())
def test_canonical_order_forgets_the_order_of_the_source(pairs: list[tuple[int, int]], random: object) -> None:
    def arrays(rows: list[tuple[int, int]]) -> Arrays:
        x = np.array([[[[value]] * 2] * 2 for value, _ in rows], dtype=np.uint8)
        return canonical(Arrays(x, np.array([label for _, label in rows], dtype=np.int64), ("a", "b", "c")))

    mixed = list(pairs)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = arrays(pairs), arrays(mixed)
    assert np.array_equal(one.x, other.x)
    assert np.array_equal(one.y, other.y)
    assert sorted(zip(one.x[:, 0, 0, 0].tolist(), one.y.tolist(), strict=True)) == sorted(pairs)


def test_canonical_order_is_that_of_blake2b_of_pixels_and_label() -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])
    keys = [hashlib.blake2b(x[i].tobytes() + y[i].tobytes(), digest_size=16).digest() for i in range(6)]
    ordered = canonical(Arrays(x, y, ("a", "b", "c")))
    assert ordered.y.tolist() == [int(y[keys.index(key)]) for key in sorted(keys)]


def test_digest_sees_type_shape_pixels_and_labels_but_no_names() -> None:
    x, y = np.zeros((2, 4), dtype=np.float32), np.array([0, 1])
    text = b"<f4 (2, 4) <i8 (2,)\n"
    assert digest_of(x, y) == hashlib.sha256(text + x.tobytes() + y.tobytes()).hexdigest()
    others = [(x.reshape(2, 2, 2, 1), y), (x + 1, y), (x, y[::-1].copy()), (x.astype(np.int32), y)]
    assert digest_of(x, y) not in {digest_of(*other) for other in others}


@pytest.mark.parametrize(
    ("given_shape", "dtype", "shape", "kept"),
    [
        ((5, 8, 9), "uint8", (5, 8, 9, 1), "uint8"),
        ((5, 8, 9, 3), "uint8", (5, 8, 9, 3), "uint8"),
        ((5, 3, 8, 9), "uint8", (5, 8, 9, 3), "uint8"),
        ((5, 1, 8, 9), "uint8", (5, 8, 9, 1), "uint8"),
        ((5, 3, 8, 3), "uint8", (5, 3, 8, 3), "uint8"),
        ((5, 8, 9, 4), "float64", (5, 8, 9, 4), "float32"),
        ((5, 7), "uint8", (5, 7), "int64"),
        ((5, 7), "uint16", (5, 7), "int64"),
        ((5, 7), "bool", (5, 7), "bool"),
        ((5, 7, 2), "bool", (5, 7, 2), "bool"),
        ((5, 2, 3, 4, 6), "float64", (5, 2, 3, 4, 6), "float32"),
        ((5, 7), "float64", (5, 7), "float32"),
        ((5, 7), "float16", (5, 7), "float32"),
    ],
)
def test_forms_of_x(given_shape: tuple[int, ...], dtype: str, shape: tuple[int, ...], kept: str) -> None:
    arrays = arrays_from(np.ones(given_shape, dtype), [0, 1, 2, 1, 0], None, "here")
    check(arrays, "here")
    assert (arrays.x.shape, arrays.x.dtype.name) == (shape, kept)


@pytest.mark.parametrize(
    ("given_shape", "dtype", "shape", "kept"),
    [
        ((5, 8, 9), "float64", (5, 8, 9), "float32"),
        ((5, 8, 9), "uint8", (5, 8, 9), "int64"),
        ((5, 8, 9, 3), "float32", (5, 9, 3, 8), "float32"),  # a batch gives 8 × 9 × 3 back
        ((5, 8, 9, 3), "int32", (5, 8, 9, 3), "int64"),
        ((5, 7), "float32", (5, 7), "float32"),
    ],
)
def test_forms_of_tensors(given_shape: tuple[int, ...], dtype: str, shape: tuple[int, ...], kept: str) -> None:
    arrays = arrays_from(np.ones(given_shape, dtype), [0, 1, 2, 1, 0], None, "here", "tensor")
    check(arrays, "here")
    assert (arrays.x.shape, arrays.x.dtype.name) == (shape, kept)


@pytest.mark.parametrize("shape", [(2, 8, 9), (2, 8, 9, 3), (2, 3, 8, 9)])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
def test_whole_numbers_are_no_images(shape: tuple[int, ...], dtype: str) -> None:
    line = f'^here: x is {dtype} with {len(shape)} axes; give images as uint8 .* or say kind = "tensor"'
    with pytest.raises(DataError, match=line):
        arrays_from(np.ones(shape, dtype), [0, 1], None, "here")


def test_named_arrays_have_one_order_and_one_digest() -> None:
    ids, mask = np.arange(12).reshape(6, 2), np.arange(12).reshape(6, 2) % 3 > 0
    one = canonical(arrays_from({"ids": ids, "mask": mask}, [0, 1, 2, 0, 1, 2], None, "here"))
    other = canonical(arrays_from({"mask": mask[::-1], "ids": ids[::-1]}, [2, 1, 0, 2, 1, 0], None, "here"))
    assert {name: array.tolist() for name, array in one.x.items()} == {n: a.tolist() for n, a in other.x.items()}
    assert digest_of(one.x, one.y) == digest_of(other.x, other.y)
    assert sorted(zip(one.x["ids"][:, 0].tolist(), one.y.tolist(), strict=True)) == [
        (0, 0), (2, 1), (4, 2), (6, 0), (8, 1), (10, 2)
    ]  # fmt: skip
    assert digest_of({"ids": one.x["ids"], "musk": one.x["mask"]}, one.y) != digest_of(one.x, one.y)


def test_kinds_of_named_arrays_may_differ() -> None:
    x = {"photo": np.ones((2, 4, 5)), "steps": np.ones((2, 4, 5)), "table": np.ones((2, 3))}
    found = arrays_from(x, [0, 1], None, "here", {"steps": "tensor"}).x
    assert {name: array.shape for name, array in found.items()} == {
        "photo": (2, 4, 5, 1), "steps": (2, 4, 5), "table": (2, 3)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("x", "kind", "line"),
    [
        ([[1, 2], [3]], "image", "here: x cannot be one array .*; make all of one shape, for example padded"),
        (np.array([[1, 2], [3]], dtype=object), "image", "here: x has samples of different shapes; make all of one"),
        ({"ids": [[1, 2], [3]]}, "image", "here: ids cannot be one array"),
        ({"ids": [["a", "b"], ["c", "d"]]}, "image", "here: ids is <U1 of shape"),
        ({"ids": np.ones((3, 2))}, "image", "here: 3 samples of ids and 2 labels"),
        ({"ids": np.ones((2, 0))}, "image", r"here: ids is float32 of shape \(2, 0\)"),
        ({"a b": np.ones((2, 2))}, "image", "here: input 'a b' goes to a model as a keyword argument"),
        ({}, "image", "here: x is an empty dict"),
        ({"ids": np.ones((2, 2))}, {"mask": "tensor"}, "here: kind names 'mask', which is no input; they are ids"),
        (np.ones((2, 2)), {"x": "tensor"}, "here: kind is of arrays by name, and x is one array"),
        (np.ones((2, 2)), "series", "here: kind 'series' is unknown; it is one of image, tensor"),
        (np.array([[2**63], [0]], dtype=np.uint64), "image", "here: x holds 9223372036854775808, which is too large"),
    ],
)
def test_inputs_that_do_not_fit_are_named(x: object, kind: Any, line: str) -> None:
    with pytest.raises(DataError, match=f"^{line}") as caught:
        check(arrays_from(x, [0, 1], None, "here", kind), "here")
    assert "\n" not in str(caught.value)


def test_channels_first_are_moved_last() -> None:
    x = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    assert arrays_from(x, [0, 1], None, "here").x[1, 2, 3].tolist() == x[1, :, 2, 3].tolist()


def test_labels_that_are_names_are_numbered_in_sorted_order_or_as_given() -> None:
    x = np.zeros((3, 2))
    assert arrays_from(x, ["dog", "ape", "dog"], None, "here").y.tolist() == [1, 0, 1]
    given_names = arrays_from(x, ["dog", "ape", "dog"], ["dog", "cow", "ape"], "here")
    assert given_names.y.tolist() == [0, 2, 0]
    assert given_names.class_names == ("dog", "cow", "ape")
    with pytest.raises(DataError, match=r"^here: label 'ape' is not one of the class names dog, cow$"):
        arrays_from(x, ["dog", "ape", "dog"], ["dog", "cow"], "here")


@pytest.mark.parametrize(
    ("x", "y", "names", "line"),
    [
        (np.zeros(3), [0, 1, 2], None, r"here: x is float64 of shape \(3,\); it must be numbers of shape"),
        (np.array([["a"]]), [0], None, r"here: x is <U1 of shape \(1, 1\)"),
        (np.zeros((3, 0)), [0, 1, 2], None, r"here: x is float32 of shape \(3, 0\)"),
        (np.zeros((2, 4)), [0, 1, 1], None, "here: 2 samples and 3 labels"),
        (np.zeros((0, 4)), np.zeros(0, int), None, "here: 0 samples and 0 labels"),
        (np.zeros((2, 4)), [[0], [1]], None, r"here: labels are int64 of shape \(2, 1\)"),
        (np.zeros((2, 4)), [0.0, 1.0], None, "here: labels are float64; they must be whole numbers or strings"),
        (np.zeros((2, 4)), [0, -1], None, "here: label -1 is out of range; with 1 classes use 0 to 0"),
        (np.zeros((2, 4)), [0, 2], ("a", "b"), "here: label 2 is out of range; with 2 classes use 0 to 1"),
        (np.zeros((2, 4)), [0, 10**9], None, "here: label 1000000000 is more than 2 samples can have classes"),
        (np.array([[0.0], [np.nan]]), [0, 1], None, "here: sample 1 of x holds NaN or infinity"),
        (np.array([[1e300], [0.0]]), [0, 1], None, "here: sample 0 of x holds NaN or infinity"),
    ],
)
def test_errors_name_the_place_and_the_remedy(
    x: np.ndarray, y: object, names: tuple[str, ...] | None, line: str
) -> None:
    with pytest.raises(DataError, match=f"^{line}") as caught:
        check(arrays_from(x, y, names, "here"), "here")
    assert "\n" not in str(caught.value)
