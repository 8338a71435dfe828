"""The real data sets, if they are on this machine."""

from pathlib import Path

import numpy as np
import pytest

from fedssa.data import Cifar10, Cifar100, Parquet, prepare
from fedssa.errors import DataError
from tests.real_data import DATA, real_data


@real_data("cifar100")
def test_cifar100_is_complete() -> None:
    data = prepare(Cifar100(dir=str(DATA)))
    assert (data.x.shape, data.x.dtype.name) == ((60_000, 32, 32, 3), "uint8")
    assert np.bincount(data.y).tolist() == [600] * 100
    assert data.digest == "1d87caa8019ccc8e37d12263e2a65423da473069952ae371a20fef3e5d574c20"
    totals = data.x.sum(axis=(0, 1, 2), dtype=np.int64)
    published = [0.5071, 0.4865, 0.4409]  # of the training part, which everyone normalises with
    assert totals / (255 * 60_000 * 32 * 32) == pytest.approx(published, abs=0.002)


@real_data("cifar10")
def test_cifar10_is_found_in_the_layout_of_the_hub() -> None:
    names = [file.parent.name + "/" + file.name[:5] for file in Cifar10(dir=str(DATA)).files()]
    assert names == ["plain_text/train", "plain_text/test-"]


@real_data("cifar10")
def test_the_test_part_of_cifar10_alone_is_not_cifar10(tmp_path: Path) -> None:
    (test,) = (DATA / "cifar10" / "plain_text").glob("test-*.parquet")
    data = prepare(Parquet(dir=str(test)))
    assert np.bincount(data.y).tolist() == [1000] * 10
    assert data.class_names == Cifar10.release.class_names
    (tmp_path / test.name).symlink_to(test)
    with pytest.raises(DataError, match="holds no cifar10"):
        prepare(Cifar10(dir=str(tmp_path)))


@real_data("chula_rbc12")
def test_chula_rbc12() -> None:
    data = prepare(Parquet(dir=str(DATA / "chula_rbc12")))
    assert (data.x.shape, data.num_classes) == ((19_076, 32, 32, 3), 12)
    counts = dict(zip(data.class_names, np.bincount(data.y).tolist(), strict=True))
    assert (counts["normal_cell"], counts["teardrop"]) == (5368, 279)


@real_data("banking77")
def test_text_is_refused() -> None:
    with pytest.raises(DataError, match="which column is the image? none can be".replace("?", r"\?")):
        prepare(Parquet(dir=str(DATA / "banking77")))
