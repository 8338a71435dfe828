"""Extractors of groups, with numbers worked out by hand."""

import pytest
import torch

from fedssa.core.client import ClientInfo
from fedssa.core.groups import Flat
from fedssa.core.message import digest, from_bytes, to_bytes
from fedssa.core.method import Upload
from fedssa.methods.parts.extractors import Extractors, extractor_of, mean_by_group, replace_extractor
from tests.conftest import copies, make_client, same_bits, server_at

RED, BLUE = "0123456789abcdef-1", "fedcba9876543210-1"


def upload(client: int, group: str, *numbers: float, num_train: int = 1, counter: int | None = None) -> Upload[Flat]:
    counters = None if counter is None else torch.tensor([counter])
    info = ClientInfo(client, (0,), num_train=num_train, group=group)
    return Upload(info, Flat(torch.tensor(numbers), counters))


def floats(server: Extractors) -> dict[str, list[float]]:
    return {group: vector.floats.tolist() for group, vector in server.groups.items()}


@pytest.mark.parametrize(("weights", "mean"), [("count", 4.0), ("equal", 3.0)])  # (1·1 + 3·5) / 4, (1 + 5) / 2
def test_the_mean_by_samples_and_the_uniform_one(weights: str, mean: float) -> None:
    uploads = [upload(0, RED, 1.0, num_train=1), upload(1, RED, 5.0, num_train=3)]
    assert floats(mean_by_group(Extractors(), uploads, weights, server_at(0))) == {RED: [mean]}  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", ["count", "equal"])
def test_two_groups_never_mix(weights: str) -> None:
    uploads = [upload(0, RED, 1.0, num_train=9), upload(1, BLUE, 100.0), upload(2, RED, 3.0, num_train=9)]
    assert floats(mean_by_group(Extractors(), uploads, weights, server_at(0))) == {  # type: ignore[arg-type]
        RED: [2.0],
        BLUE: [100.0],
    }


def test_groups_of_other_lengths_do_not_meet() -> None:
    long = "0123456789abcdef-3"
    uploads = [upload(0, RED, 1.0), upload(1, long, 1.0, 2.0, 3.0)]
    assert floats(mean_by_group(Extractors(), uploads, "equal", server_at(0))) == {RED: [1.0], long: [1.0, 2.0, 3.0]}


def test_an_absent_group_keeps_its_vector() -> None:
    server = mean_by_group(Extractors(), [upload(0, RED, 1.0), upload(1, BLUE, 7.0)], "equal", server_at(0))
    after = mean_by_group(server, [upload(2, RED, 9.0)], "equal", server_at(0))
    assert floats(after) == {RED: [9.0], BLUE: [7.0]}  # red: of this round's participants alone
    assert floats(server) == {RED: [1.0], BLUE: [7.0]}  # the state before is left alone


@pytest.mark.parametrize("weights", ["count", "equal"])
def test_the_mean_of_one_is_that_one_to_the_last_bit(weights: str) -> None:
    odd = (-0.0, 1e-45, 0.1, -3e38)
    one = upload(0, RED, *odd, num_train=7)
    mean = mean_by_group(Extractors(), [one], weights, server_at(0)).groups[RED]  # type: ignore[arg-type]
    assert same_bits({"": mean.floats}, {"": torch.tensor(odd)})


def test_of_counters_the_largest_is_taken() -> None:
    uploads = [upload(0, RED, 1.0, counter=3), upload(1, RED, 5.0, counter=8, num_train=3)]
    mean = mean_by_group(Extractors(), uploads, "count", server_at(0)).groups[RED]
    assert mean.integers is not None
    assert (mean.floats.tolist(), mean.integers.tolist()) == ([4.0], [8])


def test_nothing_is_known_of_a_group_before_one_of_it_has_uploaded() -> None:
    server = mean_by_group(Extractors(), [upload(0, RED, 1.0)], "equal", server_at(0))
    red, blue = (ClientInfo(5, (0,), num_train=1, group=group) for group in (RED, BLUE))
    assert server.of(red) is server.groups[RED]
    assert server.of(blue) is None
    assert Extractors().of(red) is None


def test_the_servers_state_survives_its_bytes() -> None:
    uploads = [upload(0, RED, 1.0, counter=3), upload(1, BLUE, 2.0)]
    for server in (Extractors(), mean_by_group(Extractors(), uploads, "equal", server_at(0))):
        assert digest(from_bytes(Extractors, to_bytes(server))) == digest(server)


def test_a_client_replaces_its_whole_extractor_and_nothing_else() -> None:
    client, other = make_client(0), make_client(1)
    before = copies(client.state())
    replace_extractor(client, extractor_of(other))
    moved = {name for name, tensor in client.state().items() if not torch.equal(tensor, before[name])}
    assert moved == {"net.extractor.0.weight", "net.extractor.0.bias"}
    assert torch.equal(extractor_of(client).floats, extractor_of(other).floats)
