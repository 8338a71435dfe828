from pathlib import Path

import numpy as np
import pytest

from fedssa.data import FromFunction, prepare
from fedssa.errors import DataError

MODULE = """
import numpy as np
from fedssa.data import Arrays

def pair(n=4, shift=0):
    return np.arange(n * 3, dtype=np.float32).reshape(n, 3) + shift, [i % 2 for i in range(n)]

def mapping(names=("no", "yes")):
    x, y = pair()
    return {"x": x, "y": y, "class_names": list(names)}

def arrays():
    x, y = pair()
    return Arrays(x, y, ("no", "yes"))

def broken():
    return [1][2]

def odd():
    return "data"

number = 5
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def own(name: str, **kwargs: object) -> FromFunction:
    return FromFunction(function=f"own_data_of_test:{name}", kwargs=kwargs)


def test_pairs_mappings_and_arrays() -> None:
    pair, mapping, arrays = (prepare(own(name)) for name in ("pair", "mapping", "arrays"))
    assert pair.digest == mapping.digest == arrays.digest
    assert (pair.class_names, mapping.class_names, arrays.class_names) == (("0", "1"), ("no", "yes"), ("no", "yes"))
    assert pair.input_shape == (3,)


def test_the_result_is_the_key_of_the_cache() -> None:
    first = prepare(own("pair"))
    assert prepare(own("pair", n=4)).folder == first.folder
    assert prepare(own("pair", shift=1)).folder != first.folder
    assert prepare(own("mapping", names=("a", "b"))).class_names == ("a", "b")
    assert prepare(own("mapping", names=("c", "d"))).class_names == ("c", "d")


def test_a_damaged_entry_is_made_anew() -> None:
    good = prepare(own("pair"))
    before = np.array(good.x)
    (good.folder / "x.npy").write_bytes(b"")
    assert np.array_equal(prepare(own("pair")).x, before)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (own("nothing"), r"own_data_of_test:nothing cannot be imported \(.*\): write package.module:function"),
        (FromFunction(function="no_such_module:f"), "no_such_module:f cannot be imported"),
        (FromFunction(function="own_data_of_test"), "own_data_of_test cannot be imported"),
        (FromFunction(function=""), " cannot be imported"),
        (own("number"), "own_data_of_test:number is no function"),
        (own("broken"), "own_data_of_test:broken failed: IndexError: list index out of range"),
        (own("pair", m=3), r"own_data_of_test:pair failed: TypeError: pair\(\) got an unexpected keyword"),
        (own("odd"), r"own_data_of_test:odd: gave a str; it should be \(x, y\) or a mapping"),
        (own("mapping", names=("a",)), "own_data_of_test:mapping: label 1 is out of range"),
    ],
)
def test_error_lines(source: FromFunction, line: str) -> None:
    with pytest.raises(DataError, match=f"^{line}"):
        prepare(source)
