"""What sites choose: noise of their own system, numbers kept back or rounded, and a server that goes on with it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from fedssa.core.client import ClientInfo
from fedssa.deploy.messages import Request, refusal_in, to_records
from fedssa.deploy.server.checks import Checks
from fedssa.deploy.signing import read_order_key, signed_order
from fedssa.deploy.site.check import Preview, preview
from fedssa.deploy.site.respond import respond
from fedssa.errors import AnswerError, SettingsError
from fedssa.methods import FedProto
from fedssa.report.read.summary import summarise
from fedssa.report.tables.terminal import run_table
from fedssa.runs.directory import RunDir
from tests.deploy.in_process import InProcessGrid, Sites, node, said_in, sites_of, tensors_in
from tests.deploy.test_site import SITE, federation
from tests.tiny import FEW, tiny

NOISY = {"clip": 0.5, "sigma": 0.1}


def choosing(sites: Sites, client: int, options: str) -> None:
    """Has a site's owner say more in its Site."""
    file = sites.folder / f"site_{client}.py"
    text = file.read_text().replace("return ", "return replace(").rstrip() + f", per_class=False, {options})\n"
    file.write_text(f"from dataclasses import replace\n\nfrom fedssa import Privacy\n{text}")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sites, InProcessGrid]:
    """Site 0 as agreed on, with noise; 1 with more of its own; 2 keeps back what it can; 3 rounds."""
    table = tiny(data=FEW, rounds={"total": 2, "fraction": 1.0}, privacy=NOISY, run={"per_class": False})
    sites = sites_of(table, tmp_path_factory.mktemp("privacy"))
    choosing(sites, 1, "privacy=Privacy(clip=0.25, sigma=2.0)")
    choosing(sites, 2, "share_accuracy=False, share_counts=False")
    choosing(sites, 3, "digits=1")
    grid = sites.grid()
    list(sites.run(grid))
    return sites, grid


def replies(grid: InProcessGrid, client: int, kind: str) -> list[Message]:
    seen = ((asked.metadata, reply) for asked, reply in grid.seen)
    return [reply for about, reply in seen if (about.message_type, about.dst_node_id) == (kind, node(client))]


def test_uploads_carry_the_noise_that_was_agreed_on_or_the_sites_own(ran: tuple[Sites, InProcessGrid]) -> None:
    _, grid = ran
    agreed, own = (tensors_in(replies(grid, client, "train")[0])["rows"] for client in (0, 1))
    assert float(agreed.norm()) < 0.5 + 1.0  # of 5 · 17 numbers: at most 0.5, and noise of 0.05 · √85 = 0.46
    assert float(own.norm()) == pytest.approx(0.5 * 85**0.5, rel=0.35)


def test_a_site_with_noise_tells_no_digest_of_its_state(ran: tuple[Sites, InProcessGrid]) -> None:
    sites, grid = ran
    assert {said_in(reply)["answer"]["state_digest"] for k in range(4) for reply in replies(grid, k, "train")} == {""}
    records = RunDir.open(sites.folder / "run").records()
    assert all(client.upload_digest for client in records[-1].clients)


def test_all_that_a_silent_site_says(ran: tuple[Sites, InProcessGrid]) -> None:
    _, grid = ran
    (hello,) = (said_in(reply) for reply in replies(grid, 2, "query"))
    assert list(hello) == ["id", "seen_classes", "num_train"]
    assert hello["num_train"] == 0
    for reply in replies(grid, 2, "train"):
        answer = said_in(reply)["answer"]
        assert list(answer) == ["client", "steps", "scores", "state_digest"]
        assert answer["steps"] == 0
        assert answer["scores"] == {"test": {}, "num_test": 0, "val": {}, "num_val": 0}


def test_a_site_that_rounds_has_one_digit(ran: tuple[Sites, InProcessGrid]) -> None:
    _, grid = ran
    for reply in replies(grid, 3, "train"):
        answer = said_in(reply)["answer"]
        told = [answer["loss"], answer["header_norm"], *answer["scores"]["test"].values()]
        assert told == [float(f"{number:.1g}") for number in told]
        assert answer["scores"]["num_test"] in range(10)


def test_the_server_goes_on_without_what_is_kept_back(ran: tuple[Sites, InProcessGrid]) -> None:
    sites, _ = ran
    assert sites.faults() == []
    run = RunDir.open(sites.folder / "run")
    last = run.records()[-1]
    assert [client.id for client in last.clients] == [0, 1, 2, 3]
    assert last.num_heard == 3
    summary = summarise(run)
    assert list(summary.accuracies) == [0, 1, 3]
    assert run.about["privacy"] == {
        "epsilon": pytest.approx(400 + 2 * (400 * math.log(1e5)) ** 0.5),
        "delta": 1e-5,
        "rounds": 2,
    }
    assert any("clip 0.5, sigma 0.1: ε = 536" in str(cell) for cell in run_table(summary).columns[1].cells)


def test_an_answer_that_is_sent_again_has_the_same_noise(tmp_path: Path) -> None:
    table = tiny(data=FEW, rounds={"total": 1, "fraction": 1.0}, privacy=NOISY)
    sites = sites_of(table, tmp_path)
    first, second = sites.grid(), sites.grid()
    records = list(sites.run(first))
    asked = next(asked for asked, _ in first.seen if asked.metadata.message_type == "train")
    second.push_messages([asked])
    (again,) = (reply for _, reply in second.seen)
    (before,) = replies(first, asked.metadata.dst_node_id - node(0), "train")
    assert torch.equal(tensors_in(again)["rows"], tensors_in(before)["rows"])
    assert records[-1].t == 0


def test_a_site_answers_in_no_round_beyond_those_agreed_on(ran: tuple[Sites, InProcessGrid]) -> None:
    sites, _ = ran
    request = to_records(Request("0" * 32, sites.federation.agreement, 0, t=2))
    order, _ = signed_order(request, 1, read_order_key(sites.folder))
    assert refusal_in(respond(order, sites.configs[node(0)], 1)) == "bad-request"


# -- before a run ----------------------------------------------------------------------------------------------
def check(tmp_path: Path, options: str, **sections: Any) -> Preview:
    file = tmp_path / "my_site.py"
    file.write_text("from fedssa import Privacy\n" + SITE.format(parts=f"train=(X, Y), test=PAIRS, {options}"))
    return preview(str(file), federation(**sections))


def test_a_check_shows_the_choices_in_force(tmp_path: Path) -> None:
    assert check(tmp_path, "").choices == []
    noise, digest, rounded = check(tmp_path, "digits=2, privacy=Privacy(clip=1.0, sigma=4.0)").choices
    assert noise.startswith("uploads are clipped to norm 1 and carry noise 4 · 1: ε = ")
    assert (digest, rounded) == ("the digest of its state: kept back", "numbers: rounded to 2 digits")
    assert len(check(tmp_path, "share_accuracy=False, share_counts=False").choices) == 2


@pytest.mark.parametrize(
    ("options", "method", "reason"),
    [
        ("privacy=Privacy(clip=-1.0, sigma=1.0)", "fedssa", r"privacy\.clip = -1\.0: should be greater than 0"),
        ("privacy=2.0", "fedssa", r"privacy = 2\.0: should be a Privacy"),
        ("privacy=Privacy(clip=1.0, sigma=1.0)", "fd", "privacy: fd sends probabilities, which with noise would be"),
        ("share_counts=False", "fedproto", "share_counts = False: fedproto sends numbers of samples"),
        ("per_class=True, digits=2", "fedssa", "per_class = True: counts of each class tell"),
        ("digits=0", "fedssa", "digits = 0: should be a whole number from 1"),
    ],
)
def test_choices_that_make_no_sense_are_refused(tmp_path: Path, options: str, method: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"my_site.py: {reason}"):
        check(tmp_path, options, method={"name": method})


def test_a_federation_agrees_on_noise_and_refuses_what_makes_no_sense() -> None:
    plain, noisy = federation(), federation(privacy=NOISY)
    assert plain.agreement != noisy.agreement
    assert "privacy" not in plain.table
    assert federation(privacy={**NOISY, "delta": 0.5}).agreement != noisy.agreement
    with pytest.raises(SettingsError, match=r"^\[privacy\]: fd sends probabilities"):
        federation(privacy=NOISY, method={"name": "fd"})


def test_a_client_that_joins_without_a_number_the_method_needs_is_refused(ran: tuple[Sites, InProcessGrid]) -> None:
    sites, _ = ran
    checks = Checks(FedProto(), sites.federation.task, sites.federation.deploy)
    with pytest.raises(AnswerError, match="no number of training samples"):
        checks.hello(to_records(ClientInfo(0, (0, 1), 0)))
    assert Checks.of(sites.federation).hello(to_records(ClientInfo(0, (0, 1), 0))).num_train == 0
