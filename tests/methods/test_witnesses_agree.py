"""FedRep, FedGH and DS-FL in runs of their own settings: late clients, a kill, and that something is shared at all."""

import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fedssa
from fedssa.core.rounds import cohort
from fedssa.records import RoundRecord
from fedssa.runs.directory import RunDir
from tests.python import python
from tests.tiny import FEW, tiny

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
CLIENTS, ROUNDS, FRACTION = 6, 5, 0.5
METHODS: dict[str, dict[str, Any]] = {
    "fedrep": {"method": {"name": "fedrep", "head_epochs": 2, "weights": "count"}},
    "fedgh": {"method": {"name": "fedgh", "in_order": False}, "server": {"epochs": 2, "optimizer": "adam"}},
    "ds-fl": {"method": {"name": "ds-fl", "distill_epochs": 2}, "public": {"share": 0.2, "per_round": 50}},
}


def cohorts(seed: int) -> list[set[int]]:
    return [set(cohort(CLIENTS, FRACTION, seed, t)) for t in range(ROUNDS)]


def late(seed: int) -> set[int]:
    """Clients that are first seen in round 3."""
    return cohorts(seed)[3].difference(*cohorts(seed)[:3])


@cache
def seed() -> int:
    """Of a run with a late client that comes back, and with one that returns after an absence."""
    return next(s for s in range(1000) if late(s) & cohorts(s)[4] and (cohorts(s)[0] & cohorts(s)[2]) - cohorts(s)[1])


def settings_of(name: str, **more: Any) -> dict[str, Any]:
    partition, rounds = {"clients": CLIENTS}, {"total": ROUNDS, "fraction": FRACTION}
    return tiny(**{"seed": seed(), "data": FEW, "partition": partition, "rounds": rounds, **METHODS[name], **more})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return {name: fedssa.run(settings_of(name), out=folder / name).path for name in METHODS}


def same_files(one: Path, other: Path) -> bool:
    names = ["rounds.jsonl", *(f"models/client-{k:05}.safetensors" for k in set().union(*cohorts(seed())))]
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def records(path: Path) -> list[RoundRecord]:
    return list(RunDir.open(path).records())


def test_killed_in_the_midst_of_a_round_and_resumed_on_two_workers_gives_the_same_bytes(
    tmp_path: Path, whole: dict[str, Path]
) -> None:
    """FedGH has most to lose: its server trains, and keeps what its optimiser has gathered."""
    out = tmp_path / "killed"
    code = (
        "import fedssa; from tests.simulate.crash_driver import Killer; "
        f"Killer(60).install(); fedssa.run({settings_of('fedgh')!r}, out={str(out)!r})"
    )
    done = python("-c", code, env=ENV, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert 1 < (out / "rounds.jsonl").read_bytes().count(b"\n") <= ROUNDS
    assert same_files(fedssa.resume(out, workers=2).path, whole["fedgh"])


@pytest.mark.parametrize("name", METHODS)
def test_a_client_first_seen_in_round_3_gets_what_the_others_have_made(whole: dict[str, Path], name: str) -> None:
    rounds = {record.t: {client.id: client for client in record.clients} for record in records(whole[name])}
    assert late(seed())
    for k in late(seed()):
        assert not any(k in rounds[t] for t in range(3))
        assert rounds[3][k].params_down > 0


def test_all_three_share_something_that_standalone_does_not_have(tmp_path: Path, whole: dict[str, Path]) -> None:
    """Else all the runs above would agree for a poor reason."""
    for name in METHODS:
        table = settings_of(name) | {"method": {"name": "standalone"}}
        alone = fedssa.run(table, out=tmp_path / name).records
        states = [{c.state_digest for c in record.clients} for record in records(whole[name])]
        for record, shared in zip(alone[2:], states[2:], strict=True):
            assert not shared & {client.state_digest for client in record.clients}
