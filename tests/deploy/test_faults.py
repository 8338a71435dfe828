"""Sites that are away, slow, dead or wrong, and a server that is killed."""

import json
import re
import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from typing_extensions import override

from fedssa.core.client import ClientInfo
from fedssa.core.context import Context
from fedssa.deploy.messages import Refusal, to_records
from fedssa.deploy.server.run import DeployedRun
from fedssa.deploy.server.sites import MAX_TRIES
from fedssa.deploy.site.disk import read_saved
from fedssa.errors import AnswerError, RunDirError
from fedssa.methods import FedSSA
from fedssa.methods.fedssa import ClassRows
from fedssa.records import RoundRecord
from fedssa.runs.directory import RunDir
from tests.deploy.in_process import InProcessGrid, Sites, node, sites_of
from tests.deploy.wrong import NOT_SIGNED, WRONG, with_tensors
from tests.tiny import FEW, tiny

TABLE = tiny(data=FEW, rounds={"total": 3, "fraction": 1.0})
BAD = 1  # the client that is wrong, or away


def refuse(_: RecordDict) -> RecordDict:
    return to_records(Refusal("busy"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[RoundRecord]:
    sites = sites_of(TABLE, tmp_path_factory.mktemp("whole"))
    return list(sites.run(sites.grid()))


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[RoundRecord]:
    """The same run if client BAD never answers in a round."""
    sites = sites_of(TABLE, tmp_path_factory.mktemp("without"))
    grid = sites.grid()
    grid.tamper[node(BAD)] = refuse
    return list(sites.run(grid))


def stop_after(t: int, sites: Sites, grid: InProcessGrid) -> None:
    with closing(sites.run(grid)) as running:  # type: ignore[type-var]
        for record in running:
            if record.t == t:
                return


# -- a server that is killed ---------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fedssa", "fedkd"])
def test_a_resumed_run_equals_a_whole_one(tmp_path: Path, method: str) -> None:
    table = tiny(data=FEW, method={"name": method})
    folders = [tmp_path / "stopped", tmp_path / "whole"]
    for folder in folders:
        folder.mkdir()
    sites, other = (sites_of(table, folder) for folder in folders)
    stop_after(0, sites, sites.grid())
    list(sites.run(sites.grid(), resume=True))
    list(other.run(other.grid()))
    files = [(each.folder / "run" / "rounds.jsonl").read_bytes() for each in (sites, other)]
    assert files[0] == files[1]


class Killed(BaseException):
    """Nothing may catch it."""


class DiesAfterTraining(InProcessGrid):
    """The server hears nobody's answer of round 1: it is dead."""

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        if any(reply.metadata.group_id == "1" for reply in replies):
            raise Killed
        return replies


def test_an_answered_round_is_sent_again_and_not_trained_again(tmp_path: Path, whole: list[RoundRecord]) -> None:
    sites = sites_of(TABLE, tmp_path)
    with pytest.raises(Killed):
        list(sites.run(DiesAfterTraining(dict(sites.configs))))
    states = sorted(tmp_path.glob("state-*/*.safetensors"))
    before = [state.stat().st_mtime_ns for state in states]
    grid = sites.grid()
    running = sites.run(grid, resume=True)
    assert next(running).t == 1
    assert [state.stat().st_mtime_ns for state in states] == before
    list(running)
    assert RunDir.open(tmp_path / "run").records() == whole


def test_a_run_in_use_a_finished_one_and_another_federation_are_refused(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path)
    running = sites.run(sites.grid())
    next(running)
    with pytest.raises(RunDirError, match="in use by process"):
        next(sites.run(sites.grid(), resume=True))
    with pytest.raises(RunDirError, match=r"exists; to continue it: fedssa federation run .* --resume; or"):
        next(sites.run(sites.grid()))
    list(running)
    with pytest.raises(RunDirError, match="ended already"):
        next(sites.run(sites.grid(), resume=True))
    other = sites_of(tiny(data=FEW, seed=8), tmp_path)
    with pytest.raises(RunDirError, match=r"another federation\.toml"):
        next(other.run(other.grid(), resume=True))


# -- sites that are away -------------------------------------------------------------------------------------
def test_an_absent_client_is_left_out_and_comes_back_with_its_own_model(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path)
    grid = sites.grid()
    records = []
    for record in sites.run(grid):
        records.append(record)
        grid.offline = {node(BAD)} if record.t == 0 else set()
    assert [record.absent for record in records] == [(), (), (BAD,), ()]
    assert [c.id for c in records[2].clients] == [0, 2, 3]
    assert records[2].num_heard == 4  # its last accuracy stands
    (fault,) = sites.faults()
    assert (fault.kind, fault.t, fault.site, fault.reason) == ("absent", 1, f"c{BAD}", "it is not here")
    (saved,) = (tmp_path / f"state-{BAD}").glob("*.safetensors")
    assert read_saved(saved).t == 2


def test_below_the_quorum_a_run_fails_and_can_be_resumed(tmp_path: Path, whole: list[RoundRecord]) -> None:
    sites = sites_of(TABLE, tmp_path, deadline=1.0, quorum=0.75)
    grid = sites.grid()
    running = sites.run(grid)
    assert [next(running).t, next(running).t] == [-1, 0]
    grid.offline = {node(0), node(1)}
    with pytest.raises(AnswerError, match=r"round 1: 2 of 4 clients .* asks for 3; .* --resume$"):
        next(running)
    grid.offline = set()
    list(sites.run(grid, resume=True))
    assert RunDir.open(tmp_path / "run").records() == whole


def test_when_nobody_answers_the_run_fails(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path, deadline=0.5)
    grid = sites.grid()
    grid.tamper = dict.fromkeys(sites.configs, refuse)
    with pytest.raises(AnswerError, match="round 0: 0 of 4 clients"):
        list(sites.run(grid))
    assert RunDir.open(tmp_path / "run").outcome() is None


def test_a_late_answer_is_ignored_and_its_client_goes_on_from_there(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path, deadline=2.0)
    grid = sites.grid()
    records = []
    for record in sites.run(grid):
        records.append(record)
        grid.silent = {node(BAD)} if record.t == 0 else set()
    assert [record.absent for record in records] == [(), (), (BAD,), ()]
    assert sites.faults()[0].reason == "no answer before the deadline"
    assert BAD in [c.id for c in records[3].clients]


def test_a_node_that_dies_over_a_message_is_asked_again(tmp_path: Path, whole: list[RoundRecord]) -> None:
    sites = sites_of(TABLE, tmp_path)
    grid = sites.grid()
    running = sites.run(grid)
    first = next(running)
    grid.dying = {node(BAD): 2}
    assert [first, *running] == whole
    assert [(fault.kind, fault.reason) for fault in sites.faults()] == [("lost", "lost (Node Unavailable)")] * 2


def test_a_client_may_join_late(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path, join_deadline=0.2)
    grid = sites.grid()
    grid.offline = {node(BAD)}
    records = []
    for record in sites.run(grid):
        records.append(record)
        grid.offline = set() if record.t == 0 else grid.offline
    assert [record.absent for record in records] == [(), (BAD,), (), ()]
    assert [record.num_heard for record in records] == [3, 3, 4, 4]


def test_without_a_quorum_at_the_start_the_missing_are_named(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path, join_deadline=0.2)
    grid = sites.grid()
    grid.offline = {node(0), node(1), node(3)}
    with pytest.raises(AnswerError, match=r"only 1 of 4 clients are here after 0\.2 s; .* missing: c0, c1, c3; then"):
        list(sites.run(grid))


# -- who is who ----------------------------------------------------------------------------------------------
def test_who_has_the_key_of_one_client_and_says_it_is_another_is_not_let_in(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path, join_deadline=0.2)
    grid = sites.grid()
    grid.configs[node(BAD)] = {**grid.configs[node(BAD)], "client-id": 0}
    assert next(sites.run(grid)).num_heard == 3
    assert sites.faults()[0].reason.endswith("it is not the client that was asked")


@pytest.mark.parametrize("keys", [True, False])
def test_with_keys_a_client_is_its_first_node_without_it_is_whoever_is_there(tmp_path: Path, keys: bool) -> None:
    sites = sites_of(TABLE, tmp_path, keys=keys, deadline=2.0)
    grid = sites.grid()
    records = []
    for record in sites.run(grid):
        records.append(record)
        if record.t == 0:
            grid.configs[node(9)] = grid.configs.pop(node(BAD))
    assert [record.absent for record in records[2:]] == ([(BAD,), (BAD,)] if keys else [(), ()])
    if keys:
        assert "its key is registered for no site" in sites.faults()[0].reason


def test_while_a_clients_node_is_there_nobody_else_is_that_client(tmp_path: Path, whole: list[RoundRecord]) -> None:
    sites = sites_of(TABLE, tmp_path, keys=False)
    grid = sites.grid()
    records = []
    for record in sites.run(grid):
        records.append(record)
        grid.configs[node(9)] = {**grid.configs[node(BAD)], "state-dir": str(tmp_path / "impostor")}
    assert records == whole
    assert not (tmp_path / "impostor").exists()


# -- sites that are wrong ------------------------------------------------------------------------------------
def test_a_bad_answer_is_dropped_and_named_and_the_result_is_as_if_it_were_absent(
    tmp_path: Path, without: list[RoundRecord]
) -> None:
    """Each kind in round 1, again and again from the same checkpoint: everyone trains it only once."""
    sites = sites_of(TABLE, tmp_path, max_bytes=1_000_000)
    grid = sites.grid()
    grid.tamper[node(BAD)] = refuse
    stop_after(0, sites, grid)
    for name, (tamper, reason) in WRONG.items():
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        shutil.copytree(tmp_path / "run", tmp_path / "again")
        (tmp_path / "again" / "audit.jsonl").unlink()
        grid.tamper[node(BAD)] = tamper
        with closing(sites.run(grid, "again", resume=True)) as running:  # type: ignore[type-var]
            assert next(iter(running)) == without[2], name
        faults = sites.faults("again")
        assert len(faults) == (MAX_TRIES if reason == NOT_SIGNED else 1), name  # who did not sign may be somebody else
        for fault in faults:
            assert (fault.t, fault.site, fault.kind) == (1, f"c{BAD}", "dropped"), name
            assert re.search(reason, fault.reason), (name, fault.reason)


class Unreadable(InProcessGrid):
    """Flower itself stumbles over what client BAD has sent in a round."""

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        if any(r.metadata.src_node_id == node(BAD) and r.metadata.message_type == "train" for r in replies):
            raise EOFError("a message that ends too soon")
        return replies


def test_an_upload_that_is_long_beside_the_others_is_dropped_and_the_median_survives_a_restart(
    tmp_path: Path, without: list[RoundRecord]
) -> None:
    sites = sites_of(TABLE, tmp_path, norm_bound_ratio=20.0)
    grid = sites.grid()
    grid.tamper[node(BAD)] = with_tensors(rows=lambda rows: rows * 1e3)
    stop_after(1, sites, grid)
    assert list(sites.run(grid, resume=True))[-1] == without[-1]
    reasons = [event.reason or "" for event in sites.faults() if event.kind == "dropped"]
    said = r"the norm of its upload is (\S+), more than deploy\.norm_bound_ratio = 20 times (\S+), the median of all"
    for reason in reasons:
        found = re.match(said, reason)
        assert found is not None
        assert float(found[1]) > 20 * float(found[2])
    assert len(reasons) == 3
    known = DeployedRun(RunDir.open(tmp_path / "run"), sites.federation).checkpoint.known
    assert sorted(known.norms) == [0, 2, 3]


def test_a_reply_that_flower_cannot_read_is_dropped_too(tmp_path: Path, without: list[RoundRecord]) -> None:
    sites = sites_of(TABLE, tmp_path)
    assert list(sites.run(Unreadable(dict(sites.configs)))) == without
    assert {(f.site, f.reason, f.kind) for f in sites.faults()} == {(f"c{BAD}", "not a message of ours", "dropped")}


def test_a_check_that_raises_anything_drops_that_answer(
    tmp_path: Path, without: list[RoundRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = FedSSA.check_upload

    def raises(self: FedSSA, up: ClassRows | None, info: ClientInfo, ctx: Context) -> None:
        if info.id == BAD:
            raise IndexError
        check(self, up, info, ctx)

    monkeypatch.setattr(FedSSA, "check_upload", raises)
    sites = sites_of(TABLE, tmp_path)
    assert list(sites.run(sites.grid())) == without
    assert sites.faults()[0].reason == "IndexError when it was checked"


def test_a_site_of_another_federation_is_not_let_in(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path, join_deadline=0.2)
    other = tmp_path / "other"
    other.mkdir()
    stray = sites_of(tiny(data=FEW, method={"name": "fedavg"}, models={"archs": ["mlp-2"]}), other)
    grid = sites.grid()
    grid.configs[node(BAD)]["federation"] = stray.configs[node(BAD)]["federation"]
    next(sites.run(grid))
    assert sites.faults()[0].reason.endswith("its federation.toml is another one")


def test_a_site_that_lost_its_state_says_so(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path)
    for record in sites.run(sites.grid()):
        if record.t == 0:
            shutil.rmtree(tmp_path / f"state-{BAD}")
    assert [(fault.kind, fault.t, fault.word) for fault in sites.faults()] == [
        ("refused", t, "lost-state") for t in (1, 2)
    ]
    assert "no longer on its disk" in sites.faults()[0].reason


def test_what_a_sites_own_code_raises_stays_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sites = sites_of(TABLE, tmp_path, join_deadline=0.2)
    (tmp_path / f"site_{BAD}.py").write_text("raise SystemExit('patient 4711')\n")
    grid = sites.grid()
    next(sites.run(grid))
    said = json.dumps([str(reply.content) for _, reply in grid.seen])
    assert "4711" not in said
    assert "patient 4711" in caplog.text
    assert "its own model or data failed" in sites.faults()[0].reason
