"""The same seed gives the same bits: serially, on any number of workers, whatever torch's threads are."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import fedssa
from fedssa.core.rounds import cohort
from fedssa.errors import FedSSAWarning
from fedssa.methods import METHODS, PRESETS
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start
from fedssa.studies.plan import one_pool, plan, run_all
from tests.real_data import DATA, real_data
from tests.tiny import tiny, two_rounds_of

CNN = {"archs": ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"], "width": 500}


def digests(result: fedssa.RunResult) -> list[tuple[int, str, str]]:
    """Of every upload and every state: equal bits, not equal accuracies."""
    return [(c.id, c.upload_digest, c.state_digest) for record in result.records[1:] for c in record.clients]


def test_one_worker_and_three_give_the_same_file(tmp_path: Path) -> None:
    run = {"metrics": ["tests.core.own_metrics:margin"]}
    rounds, privacy = {"total": 2, "fraction": 0.5}, {"clip": 1.0, "sigma": 0.01}
    settings = tiny(models=CNN, partition={"clients": 6}, rounds=rounds, run=run, privacy=privacy)
    files = []
    for workers in (1, 3):
        with pytest.warns(FedSSAWarning, match="uploads are clipped"):
            result = fedssa.run(settings, out=tmp_path / str(workers), workers=workers)
        files.append((result.path / "rounds.jsonl").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_budget_of_memory_changes_no_result(tmp_path: Path, workers: int) -> None:
    free = fedssa.run(tiny(), out=tmp_path / "free")
    tight = fedssa.run(tiny(run={"store_memory": 0.0}), out=tmp_path / "tight", workers=workers)
    assert tight.records == free.records


def test_torchs_threads_do_not_matter(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = fedssa.run(tiny(), out=tmp_path / "two")
        assert torch.get_num_threads() == 2  # put back
        torch.set_num_threads(1)
        one = fedssa.run(tiny(), out=tmp_path / "one")
    finally:
        torch.set_num_threads(before)
    assert one.records == two.records


def test_the_global_generator_is_neither_used_nor_disturbed(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one = fedssa.run(tiny(), out=tmp_path / "one")
    assert torch.equal(torch.rand(3), expected)
    assert fedssa.run(tiny(), out=tmp_path / "two").records == one.records


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    one, other = (fedssa.run(tiny(seed=seed), out=tmp_path / str(seed)) for seed in (1, 2))
    assert set(digests(one)).isdisjoint(digests(other))


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every method and preset, one after another on the same two workers."""
    folder = tmp_path_factory.mktemp("pooled")
    with one_pool(folder, 2) as pool:
        for name in (*METHODS, *PRESETS):
            run_all(plan(two_rounds_of(name), [name], 1, folder, keep_models=True), pool, lambda *_: None)
    return folder


@pytest.mark.parametrize("name", [*METHODS, *PRESETS])
def test_serial_equals_pool_and_stopped_and_resumed_for_every_method(tmp_path: Path, pooled: Path, name: str) -> None:
    serial = fedssa.run(two_rounds_of(name), out=tmp_path / "serial")
    assert (pooled / f"{name}-s7" / "rounds.jsonl").read_bytes() == (serial.path / "rounds.jsonl").read_bytes()
    with closing(start(parse_settings(two_rounds_of(name)), tmp_path / "stopped")) as begun:
        for record in begun.rounds():
            if record.t == 0:
                break
    assert fedssa.resume(tmp_path / "stopped").records == serial.records


def test_all_methods_see_the_same_cohorts_and_start(tmp_path: Path) -> None:
    one, other = (fedssa.run(tiny(method={"name": n}), out=tmp_path / n) for n in ("standalone", "fedssa"))
    assert one.records[0].accuracy == other.records[0].accuracy
    assert [[c.id for c in r.clients] for r in one.records] == [[c.id for c in r.clients] for r in other.records]
    states = [[c.state_digest for c in result.records[1].clients] for result in (one, other)]
    assert states[0] == states[1]  # in round 0 nothing has come down yet: the batches were the same


def lonely(**data: Any) -> dict[str, Any]:
    """A federation in which every class has one owner, so that there is nobody to learn from."""
    return tiny(models=CNN, rounds={"total": 3, "fraction": 1.0}, local={"lr": 0.01, "batch_size": 256}, **data)


def test_digits_with_one_owner_a_class_fedssa_equals_standalone(tmp_path: Path) -> None:
    partition = {"clients": 5, "classes_per_client": 2}
    alone = fedssa.run(lonely(partition=partition, method={"name": "standalone"}), out=tmp_path / "alone")
    method = {"name": "fedssa", "fusion": "replace"}
    with pytest.warns(FedSSAWarning, match="no class is held by two clients"):
        together = fedssa.run(lonely(partition=partition, method=method), out=tmp_path / "together")
    assert [c.state_digest for r in alone.records for c in r.clients] == [
        c.state_digest for r in together.records for c in r.clients
    ]
    assert together.records[-1].clients[0].params_down == 2 * 501  # rows did travel


def test_fd_with_one_owner_a_class_equals_standalone(tmp_path: Path) -> None:
    table = tiny(partition={"clients": 5, "classes_per_client": 2}, rounds={"fraction": 1.0})
    alone = fedssa.run({**table, "method": {"name": "standalone"}}, out=tmp_path / "alone")
    with pytest.warns(FedSSAWarning, match="nothing to share"):
        together = fedssa.run({**table, "method": {"name": "fd"}}, out=tmp_path / "together")
    for client in range(5):  # the digests differ: FD's state has its teachers in it
        mine, theirs = (fedssa.load_client(run.path, client).state_dict() for run in (alone, together))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_m1_a_is_lg_fedavg(tmp_path: Path) -> None:
    one, other = (fedssa.run(tiny(method={"name": name}), out=tmp_path / name) for name in ("m1-a", "lg-fedavg"))
    assert [d[2] for d in digests(one)] == [d[2] for d in digests(other)]


@real_data("cifar100")
def test_cifar100_with_one_owner_a_class_fedssa_equals_standalone(tmp_path: Path) -> None:
    seed = next(s for s in range(100) if set(cohort(10, 0.2, s, 0)) & set(cohort(10, 0.2, s, 1)))  # one comes back
    partition = {"clients": 10, "classes_per_client": 10}
    data = {"name": "cifar100", "dir": str(DATA)}
    settings = {**lonely(partition=partition), "data": data, "rounds": {"total": 2, "fraction": 0.2}, "seed": seed}
    alone = fedssa.run({**settings, "method": {"name": "standalone"}}, out=tmp_path / "alone")
    method = {"name": "fedssa", "fusion": "replace"}
    with pytest.warns(FedSSAWarning, match="no class is held by two clients"):
        together = fedssa.run({**settings, "method": method}, out=tmp_path / "together")
    assert [c.state_digest for r in alone.records for c in r.clients] == [
        c.state_digest for r in together.records for c in r.clients
    ]
    assert max(client.params_down for client in together.records[-1].clients) == 10 * 501  # rows did travel
