import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedssa.data import DATASETS, Arrays, Dataset, Digits, Npz, prepare
from fedssa.data.arrays import digest_of
from fedssa.errors import DataError


@pytest.fixture
def source(tmp_path: Path) -> Npz:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "some.npz", x=rng.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8), y=np.arange(20) % 4)
    return Npz(file=str(tmp_path / "some.npz"))


def entry(cache: Path) -> Path:
    (folder,) = (cache / "arrays").iterdir()  # and nothing else is left there
    return folder


def test_every_source_says_in_one_line_what_it_is() -> None:
    lines = [(kind.__doc__ or "").splitlines()[0] for kind in DATASETS.values()]
    assert all(line.endswith(".") and len(line) < 110 for line in lines)


def test_a_prepared_data_set_is_mapped_and_read_only(source: Npz, cache: Path) -> None:
    data = prepare(source)
    assert isinstance(data.x, np.memmap)
    assert not data.x.flags.writeable
    assert data.folder == entry(cache)
    assert (data.num_classes, data.input_shape, data.class_names) == (4, (3, 6, 5), ("0", "1", "2", "3"))
    assert data.digest == digest_of(data.x, data.y)


def test_vectors_have_one_axis(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", x=np.zeros((4, 7)), y=np.array(["b", "a", "a", "b"]))
    data = prepare(Npz(file=str(tmp_path / "v.npz")))
    assert (data.input_shape, data.x.dtype.name, data.class_names) == ((7,), "float32", ("a", "b"))


def test_a_worker_opens_what_another_process_prepared(source: Npz) -> None:
    data = prepare(source)
    code = "import sys; from pathlib import Path; from fedssa.data import Dataset; d = Dataset.open(Path(sys.argv[1]))"
    code += "; print(d.digest, d.x.sum(), d.num_classes, 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code, data.folder], capture_output=True, text=True, check=True)
    assert out.stdout.split() == [data.digest, str(data.x.sum()), "4", "False"]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Decodes a file and counts how often."""

    file: Path
    option: int = 0

    def files(self) -> list[Path]:
        return [self.file]

    def decode(self) -> Arrays:
        with self.file.with_suffix(".log").open("a") as log:
            log.write("decoded\n")
        x = np.frombuffer(self.file.read_bytes(), dtype=np.uint8).reshape(-1, 1, 1, 1)
        return Arrays(x, np.zeros(len(x), dtype=np.int64), ("only",))

    @property
    def times(self) -> int:
        return len(self.file.with_suffix(".log").read_text().splitlines())


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    (tmp_path / "bytes").write_bytes(bytes(range(50)))
    return Counted(file=tmp_path / "bytes")


def test_decoding_happens_once_per_file_and_options(counted: Counted) -> None:
    first = prepare(counted)
    assert prepare(counted).folder == first.folder
    assert counted.times == 1
    assert prepare(Counted(file=counted.file, option=1)).folder != first.folder
    counted.file.write_bytes(bytes(range(60)))
    assert len(prepare(counted).y) == 60
    assert counted.times == 3


def test_the_cache_may_be_given(counted: Counted, tmp_path: Path) -> None:
    assert prepare(counted, cache=tmp_path / "other").folder.parent == tmp_path / "other" / "arrays"


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "meta.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "lengthen", "empty", "remove", "zip"])
def test_a_damaged_entry_is_made_anew(counted: Counted, cache: Path, name: str, harm: str) -> None:
    good = prepare(counted)
    file = entry(cache) / name
    blob = file.read_bytes()
    harmed = {
        "flip": blob[:-3] + bytes([blob[-3] ^ 1]) + blob[-2:],
        "truncate": blob[:-5],
        "lengthen": blob + b"more",
        "empty": b"",
        "zip": b"PK\x03\x04",
    }
    file.unlink() if harm == "remove" else file.write_bytes(harmed[harm])
    again = prepare(counted)
    assert counted.times == 2
    assert (again.digest, again.folder) == (good.digest, entry(cache))
    assert file.read_bytes() == blob
    assert prepare(counted).digest == good.digest
    assert counted.times == 2


def test_opening_without_verification_looks_at_sizes_only(counted: Counted, cache: Path) -> None:
    prepare(counted)
    file = entry(cache) / "x.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert prepare(counted, verify=False).x[-1, 0, 0, 0] == ord("!")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"^{entry(cache)} holds no prepared data set"):
        Dataset.open(entry(cache))


def test_a_reader_keeps_its_data_when_another_process_heals_the_entry(counted: Counted, cache: Path) -> None:
    data = prepare(counted)
    before = np.array(data.x)
    (entry(cache) / "y.npy").unlink()
    prepare(counted)
    assert np.array_equal(data.x, before)


RACER = """
import sys, time
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from fedssa.data import Arrays, prepare

@dataclass(frozen=True)
class Slow:
    file: Path
    def files(self):
        return [self.file]
    def decode(self):
        self.file.with_name(f"started-{sys.argv[2]}").touch()
        while len(list(self.file.parent.glob("started-*"))) < 2:
            time.sleep(0.01)
        return Arrays(np.arange(1000, dtype=np.float32)[:, None], np.zeros(1000, np.int64), ("a",))

data = prepare(Slow(Path(sys.argv[1])))
print(data.digest, data.folder, data.x.sum())
"""


def test_two_processes_may_prepare_at_once(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "file").touch()
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, tmp_path / "file", str(i)], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    outputs = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert outputs[0] == outputs[1]
    assert outputs[0][1:] == [str(entry(cache)), "499500.0"]


def test_a_cache_that_cannot_be_written_is_named(source: Npz, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSA_CACHE", "/proc/nope")
    with pytest.raises(DataError, match=r"^cache folder /proc/nope/arrays cannot be written \(.*\): set FEDSSA_CACHE"):
        prepare(source)


def test_a_file_in_place_of_the_cache_is_named(source: Npz, cache: Path) -> None:
    (cache / "arrays").touch()
    with pytest.raises(DataError, match=f"^cache folder {cache}/arrays cannot be written .*FEDSSA_CACHE"):
        prepare(source)


def test_where_the_cache_is(source: Npz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDSSA_CACHE", "~/mine")
    assert prepare(source).folder.is_relative_to(tmp_path / "home" / "mine")
    monkeypatch.delenv("FEDSSA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert prepare(source).folder.is_relative_to(tmp_path / "xdg" / "fedssa")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert prepare(source).folder.is_relative_to(tmp_path / "home" / ".cache" / "fedssa")


def test_a_relative_cache_is_found_from_another_folder(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSSA_CACHE", "near")
    folder = prepare(counted).folder
    monkeypatch.chdir("/")
    assert Dataset.open(folder).num_classes == 1


def test_wrong_arrays_of_a_source_are_refused_and_leave_nothing(counted: Counted, cache: Path) -> None:
    counted.file.write_bytes(b"")
    with pytest.raises(DataError, match=f"^{counted.file}: 0 samples and 0 labels"):
        prepare(counted)
    assert list((cache / "arrays").iterdir()) == []


def test_digits() -> None:
    data = prepare(Digits())
    assert (data.x.shape, data.x.dtype.name, data.input_shape) == ((1797, 32, 32, 1), "uint8", (1, 32, 32))
    assert np.bincount(data.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert set(np.unique(data.x)) == {round(level * 255 / 16) for level in range(17)}
    blocks = np.asarray(data.x).reshape(-1, 8, 4, 8, 4)
    assert (blocks == blocks[:, :, :1, :, :1]).all()
    assert data.digest == "8b6ee396b51f3bd0bec7f271b6cb555311f384445fc7c7c89c4fe242c0c4fe8e"


def test_meta_is_plain_json(source: Npz, cache: Path) -> None:
    data = prepare(source)
    meta = json.loads((entry(cache) / "meta.json").read_text())
    assert meta == {
        "class_names": ["0", "1", "2", "3"],
        "columns": [],
        "digest": data.digest,
        "x": ["|u1", [20, 6, 5, 3]],
        "y": ["<i8", [20]],
    }
