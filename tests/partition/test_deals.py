"""What holds for every partition, built-in ones by name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssa.errors import DataError
from fedssa.partition import PARTITIONS, ByClasses, ByColumn, Dirichlet, Iid
from fedssa.partition.partition import Labels

NUM_CLASSES = 5


def balanced(num_classes: int, each: int, seed: int = 0) -> Labels:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes), each))


def partitions(clients: int, classes: int = NUM_CLASSES) -> list[ByClasses | Dirichlet | Iid]:
    return [
        ByClasses(clients=clients, classes_per_client=classes),
        Dirichlet(clients=clients, gamma=0.3, min_samples=1),
        Iid(clients=clients),
    ]


def test_names() -> None:
    known = [("classes", ByClasses), ("dirichlet", Dirichlet), ("iid", Iid), ("column", ByColumn)]
    assert list(PARTITIONS.items()) == known
    for partition in PARTITIONS.values():  # users are shown the first line
        assert (partition.__doc__ or "").splitlines()[0].endswith(".")


@pytest.mark.parametrize("which", range(3))
@settings(max_examples=50)
@given(
    st.lists(st.integers(0, NUM_CLASSES - 1), min_size=1, max_size=80),
    st.integers(1, 20),
    st.integers(0, 9),
)
def test_every_sample_is_dealt_once(which: int, labels: list[int], clients: int, seed: int) -> None:
    clients = min(clients, len(labels))
    rng, each = np.random.default_rng(seed), partitions(clients, len(set(labels)))
    dealt = each[which].draw(np.array(labels), NUM_CLASSES, rng)
    assert len(dealt) == clients
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in dealt)
    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(len(labels)))


@pytest.mark.parametrize("which", range(3))
def test_the_generator_decides_everything(which: int) -> None:
    labels = balanced(NUM_CLASSES, 40)

    def deal(seed: int, global_seed: int) -> list[list[int]]:
        np.random.seed(global_seed)
        dealt = partitions(7)[which].draw(labels, NUM_CLASSES, np.random.default_rng(seed))
        return [part.tolist() for part in dealt]

    assert deal(1, 0) == deal(1, 99)
    assert deal(1, 0) != deal(2, 0)


@pytest.mark.parametrize("which", range(3))
def test_labels_of_any_integer_type(which: int) -> None:
    labels = balanced(NUM_CLASSES, 40)
    wide, narrow = (
        partitions(7)[which].draw(labels.astype(kind), NUM_CLASSES, np.random.default_rng(0))
        for kind in (np.int64, np.uint8)
    )
    for a, b in zip(wide, narrow, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("which", range(3))
def test_more_clients_than_samples(which: int) -> None:
    with pytest.raises(DataError, match=r"^partition\.clients = 6 but the data set has 5 samples: .+$"):
        partitions(6)[which].draw(balanced(NUM_CLASSES, 1), NUM_CLASSES, np.random.default_rng(0))


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("wrong", [-1, NUM_CLASSES])
def test_a_label_out_of_range_is_not_dropped_silently(which: int, wrong: int) -> None:
    with pytest.raises(DataError, match=r"must be from 0 to 4$"):
        partitions(1)[which].draw(np.array([0, 1, wrong]), NUM_CLASSES, np.random.default_rng(0))


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9))
def test_iid_parts_are_equal(samples: int, clients: int, seed: int) -> None:
    clients = min(clients, samples)
    dealt = Iid(clients=clients).draw(np.zeros(samples, np.int64), 1, np.random.default_rng(seed))
    sizes = [len(part) for part in dealt]
    assert max(sizes) - min(sizes) <= 1


def test_iid_clients_see_the_same_distribution() -> None:
    labels = balanced(10, 1000)
    for part in Iid(clients=5).draw(labels, 10, np.random.default_rng(0)):
        counts = np.bincount(labels[part], minlength=10)
        assert (abs(counts - 200) < 65).all()  # 5 standard deviations


@pytest.mark.parametrize("which", range(3))
def test_a_clients_samples_come_from_all_over_its_classes(which: int) -> None:
    """A data set may be sorted by something else, time or place, which is no business of a partition."""
    for part in partitions(4)[which].draw(
        np.repeat(np.arange(NUM_CLASSES), 4000), NUM_CLASSES, np.random.default_rng(0)
    ):
        place = part % 4000 / 4000  # in its class, uniform from 0 to 1
        assert abs(place.mean() - 0.5) < 5 * np.sqrt(1 / 12 / len(part))
