"""What messages cost besides their tensors: names, shapes and what JSON says must not grow unnoticed."""

from pathlib import Path

import pytest
from flwr.app import Message

from fedssa.core.message import num_bytes
from tests.deploy.in_process import over_the_wire, sites_of, tensors_in
from tests.tiny import FEW, needs_of, tiny

MAY_DIFFER = 100
FEWEST = {"per_class": False}  # a site tells no counts per class unless its owner wants it
REQUEST = 539  # a request without a payload
SIGNATURE = (82, 121)  # bytes that a signature adds with its name, down (Ed25519) and up (ECDSA)
FIRST_EDITION = {  # the largest request and answer of a round, in bytes, when fields were scalars of Flower's
    "standalone": (539, 728),
    "fedssa": (662, 851),
    "fedssa-plus": (735, 1015),
    "fedproto": (670, 950),
    "fd": (670, 915),
    "fml": (1011, 1200),
    "fedkd": (1551, 1660),
    "lg-fedavg": (606, 796),
    "fedclassavg": (606, 796),
    "fedavg": (1011, 1226),
}


def besides_tensors(message: Message) -> int:
    return over_the_wire(message)[1] - num_bytes(tensors_in(message))


@pytest.mark.parametrize("name", FIRST_EDITION)
def test_a_message_is_as_large_as_in_the_first_edition_and_its_signature(tmp_path: Path, name: str) -> None:
    sites = sites_of(tiny(data=FEW, method={"name": name}, run=FEWEST, **needs_of(name)), tmp_path)
    grid = sites.grid()
    list(sites.run(grid))
    rounds = [pair for pair in grid.seen if pair[0].metadata.message_type == "train"]
    largest = [max(map(besides_tensors, way)) for way in zip(*rounds, strict=True)]
    assert largest == pytest.approx(
        [sum(both) for both in zip(FIRST_EDITION[name], SIGNATURE, strict=True)], abs=MAY_DIFFER
    )
    empty = [besides_tensors(asked) for asked, _ in rounds if not tensors_in(asked)]
    assert empty == pytest.approx([REQUEST + SIGNATURE[0]] * len(empty), abs=MAY_DIFFER)
