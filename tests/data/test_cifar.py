import io
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from fedssa.data import Cifar10, Cifar100, Dataset, prepare
from fedssa.data.arrays import Arrays, canonical, digest_of
from fedssa.data.cifar_files import parse_python
from fedssa.errors import DataError

from .fake_cifar import Small, Small10, Small100, archive, members, parquet, samples, tar_gz, unpack

KINDS = pytest.mark.parametrize("kind", [Small10, Small100])


def title(kind: Small) -> str:
    return "cifar-10" if kind is Small10 else "cifar-100"


WRITERS: dict[str, Callable[[Small, Path], object]] = {
    "python archive": lambda kind, to: (to / f"{title(kind)}-python.tar.gz").write_bytes(archive(kind)),
    "binary archive": lambda kind, to: (to / f"{title(kind)}-binary.tar.gz").write_bytes(archive(kind, "binary")),
    "python folder": lambda kind, to: unpack(kind, "python", to),
    "binary folder": lambda kind, to: unpack(kind, "binary", to),
    "parquet": parquet,
    "parquet of the hub": lambda kind, to: parquet(kind, to / kind.release.parquet_folder),
}


@KINDS
@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("subfolder", [".", 0, 1])
def test_every_form_gives_the_same_bytes(kind: Small, form: str, subfolder: str | int, tmp_path: Path) -> None:
    folder = tmp_path / "data" / (kind.release.subfolders[subfolder] if isinstance(subfolder, int) else subfolder)
    folder.mkdir(parents=True)
    WRITERS[form](kind, folder)
    data = prepare(kind(dir=str(tmp_path / "data")))
    x, y = samples(kind)
    want = canonical(Arrays(x.transpose(0, 2, 3, 1), y, kind.release.class_names))
    assert (data.digest, data.class_names) == (digest_of(want.x, want.y), want.class_names)
    assert np.array_equal(data.x, want.x)
    assert np.array_equal(data.y, want.y)
    assert data.input_shape == (3, 32, 32)


@pytest.mark.parametrize("form", ["python", "binary"])
def test_the_unpacked_folder_itself_may_be_named(form: str, tmp_path: Path) -> None:
    unpack(Small10, form, tmp_path)
    (folder,) = tmp_path.glob("cifar-10-batches-*")
    assert len(prepare(Small10(dir=str(folder))).y) == 20


def test_names_of_classes() -> None:
    assert Cifar10.release.class_names[:3] == ("airplane", "automobile", "bird")
    assert len(set(Cifar100.release.class_names)) == 100
    assert Cifar100.release.class_names[26] == "crab"


def test_folders_are_searched_in_order(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spots = [tmp_path / "first", tmp_path / "second" / "cifar10", cache / "downloads"]
    monkeypatch.setenv("FEDSSA_DATA", os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]))
    for spot in spots:
        spot.mkdir(parents=True)
        (spot / "cifar-10-python.tar.gz").touch()
    for spot in spots:
        assert Small10().files() == [spot / "cifar-10-python.tar.gz"]
        (spot / "cifar-10-python.tar.gz").unlink()


def test_the_two_data_sets_are_not_mixed_up(tmp_path: Path) -> None:
    parquet(Small10, tmp_path / "cifar10" / "plain_text")
    parquet(Small100, tmp_path / "cifar100" / "cifar100")
    assert prepare(Small10(dir=str(tmp_path))).num_classes == 10
    assert prepare(Small100(dir=str(tmp_path))).num_classes == 100


def test_a_given_folder_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(Small10, "python", tmp_path / "full")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("FEDSSA_DATA", str(tmp_path / "full"))
    with pytest.raises(DataError, match=f"^data.dir {tmp_path}/empty holds no cifar10: put cifar-10-python.tar.gz or"):
        prepare(Small10(dir=str(tmp_path / "empty")))


def test_relative_and_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(Small10, "python", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Small10(dir="data").files() == Small10(dir="~/data").files() == Small10(dir=f"{tmp_path}/data").files()
    with pytest.raises(DataError, match=r"^~nobody-of-that-name/x: there is no such home folder"):
        Small10(dir="~nobody-of-that-name/x").files()


def test_an_incomplete_folder_does_not_count(tmp_path: Path) -> None:
    unpack(Small10, "python", tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    parquet(Small10, tmp_path)
    assert {file.suffix for file in Small10(dir=str(tmp_path)).files()} == {".parquet"}


def test_the_shipped_classes_want_the_true_counts(tmp_path: Path) -> None:
    unpack(Small10, "binary", tmp_path)
    line = r"is not a good copy of cifar10 \(20 images of 10 classes, not 6,000 of each of 10\): delete it and get http"
    with pytest.raises(DataError, match=f"^{tmp_path}/cifar-10-batches-bin {line}"):
        prepare(Cifar10(dir=str(tmp_path)))


def load(tmp_path: Path, content: bytes, name: str = "cifar-10-python.tar.gz") -> Dataset:
    (tmp_path / name).write_bytes(content)
    return prepare(Small10(dir=str(tmp_path)))


def refused(tmp_path: Path, content: bytes, why: str, name: str = "cifar-10-python.tar.gz") -> None:
    line = rf"^{tmp_path}/{name} is not a good copy of cifar10 \({why}\): delete it and get http\S+ in its place$"
    with pytest.raises(DataError, match=line):
        load(tmp_path, content, name)


@pytest.mark.parametrize("form", ["python", "binary"])
def test_truncated_archives(form: str, tmp_path: Path) -> None:
    blob = archive(Small10, form)
    for length in (0, 5, 1000, len(blob) // 2, len(blob) - 10):
        refused(tmp_path, blob[:length], ".+", f"cifar-10-{form}.tar.gz")


def test_flipped_bits_never_give_another_data_set(tmp_path: Path) -> None:
    blob = archive(Small10)
    good = load(tmp_path, blob).digest
    for at in np.random.default_rng(3).integers(0, len(blob), 40):
        try:
            assert load(tmp_path, blob[:at] + bytes([blob[at] ^ 16]) + blob[at + 1 :]).digest == good
        except DataError as err:
            assert "\n" not in str(err)  # noqa: PT017


def test_archives_with_wrong_members(tmp_path: Path) -> None:
    batches = members(Small10, "python")
    test_batch = batches.pop("cifar-10-batches-py/test_batch")
    refused(tmp_path, tar_gz(batches), "cifar-10-batches-py/test_batch is missing")
    elsewhere = {**batches, "../test_batch": test_batch}
    refused(tmp_path, tar_gz(elsewhere), "cifar-10-batches-py/test_batch is missing")
    refused(tmp_path, tar_gz({**batches, "cifar-10-batches-py/test_batch": pickle.dumps([])}), "it has no data .*")


def test_archives_with_a_leading_dot(tmp_path: Path) -> None:
    batches = {f"./{name}": blob for name, blob in members(Small10, "python").items()}
    assert len(load(tmp_path, tar_gz(batches)).y) == 20


def test_binary_rows_must_be_whole(tmp_path: Path) -> None:
    unpack(Small10, "binary", tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"cifar-10-batches-bin is not a good copy .*no multiple of 3,073"):
        prepare(Small10(dir=str(tmp_path)))


def test_a_truncated_parquet_file_is_named(tmp_path: Path) -> None:
    parquet(Small10, tmp_path)
    file = tmp_path / "test-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"^{file} cannot be read as parquet") as caught:
        prepare(Small10(dir=str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_parquet_files_of_something_else(tmp_path: Path) -> None:
    parquet(Small100, tmp_path)
    with pytest.raises(DataError, match=r"parquet has no column 'label': it has img, fine_label, coarse_label$"):
        prepare(Small10(dir=str(tmp_path)))


class Exploit:
    def __init__(self, *call: object) -> None:
        self.call = call

    @override
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("packed", [True, False])
def test_pickles_that_call_functions_are_refused(protocol: int, packed: bool, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    calls = [(os.system, f"touch {ran}"), (eval, f"open({str(ran)!r}, 'w')"), (shutil.rmtree, str(tmp_path))]
    for call in calls:
        evil = {"cifar-10-batches-py/data_batch_1": pickle.dumps(Exploit(*call), protocol)}
        content = {**members(Small10, "python"), **evil}
        if packed:
            (tmp_path / "cifar-10-python.tar.gz").write_bytes(tar_gz(content))
        else:
            unpack(Small10, "python", tmp_path)
            (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(content["cifar-10-batches-py/data_batch_1"])
        with pytest.raises(DataError, match=r"it asks for \w+\.\w+, which is no part of CIFAR"):
            prepare(Small10(dir=str(tmp_path)))
        assert not ran.exists()


def test_only_what_builds_arrays_is_allowed() -> None:
    for module, name in [("numpy", "load"), ("numpy", "ndarray.tofile"), ("_codecs", "decode"), ("builtins", "dict")]:
        with pytest.raises(ValueError, match="which is no part of CIFAR"):
            parse_python(f"c{module}\n{name}\n.".encode(), b"labels")
    with pytest.raises(ValueError, match="it has text in zlib"):
        parse_python(b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x04\x00\x00\x00zlibtR.", b"labels")


def test_pickles_of_python_3_are_read_too() -> None:
    data = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        if protocol == 5:  # it builds arrays through another function, which no published file does
            continue
        x, y = parse_python(pickle.dumps({b"data": data, b"labels": [3, 4]}, protocol), b"labels")
        assert np.array_equal(x, data)
        assert y.tolist() == [3, 4]


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [None, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": 5},
        {b"data": b"abc", b"labels": [0, 1]},
        {b"labels": [0, 1]},
    ],
)
def test_batches_of_another_form(batch: object) -> None:
    stream = io.BytesIO()
    pickle.dump(batch, stream, protocol=2)
    with pytest.raises(ValueError, match=r"^its|^it has no"):
        parse_python(stream.getvalue(), b"labels")
