"""HFD's server: who is sent which means and teachers, numbers each way, what is refused, and what is said before."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.message import num_params
from fedssa.core.method import Upload
from fedssa.core.task import Task
from fedssa.deploy.site.check import preview
from fedssa.errors import AnswerError, SettingsError
from fedssa.methods import HFD
from fedssa.methods.hfd import Owners, Up
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.run import start
from tests.conftest import (
    at,
    info,
    local_data,
    make_client,
    server_at,
    tiny_net,
    upload_of,
)
from tests.deploy.in_process import sites_of
from tests.methods.test_hfd import HALF, STILL, TASK, TWO, up
from tests.tiny import FEW, tiny


def after(server: Owners, t: int, **uploads: Up) -> Owners:
    """The server after a round in which clients k3, k7, … have answered."""
    found = [Upload(info(int(name[1:]), 0, 1), payload) for name, payload in uploads.items()]
    return TWO.aggregate(server, found, server_at(t, TASK))


def sent(server: Owners, k: int, t: int, *seen: int, method: HFD = TWO) -> dict[str, Any]:
    """What client k is sent in round t: teachers and means by class."""
    message = method.downlink(server, info(k, *seen), server_at(t, TASK))
    if message is None:
        return {}
    method.check_downlink(message, info(k, *seen), at(t, TASK))
    teachers = dict(zip(message.classes.tolist(), message.teachers.tolist(), strict=True))
    means = dict(zip(message.mean_classes.tolist(), message.means.tolist(), strict=True))
    return {"has_means": message.has_means, "teachers": teachers, "means": means}


# -- the server ----------------------------------------------------------------------------------------------------
def test_a_mean_leaves_the_pupil_out() -> None:
    """Of 2 and 6: 4, whatever its own is and however many samples they have."""
    found = [(1, 9, 2.0), (2, 5, 100.0), (3, 700, 6.0)]
    uploads = [Upload(ClientInfo(k, (0,), n), up({0: HALF}, {0: [x, x]})) for k, n, x in found]
    server = TWO.aggregate(Owners(), uploads, server_at(0, TASK))
    assert sent(server, 2, 1, 0)["means"] == {0: [4.0, 4.0]}
    assert sent(server, 1, 1, 0)["means"] == {0: [53.0, 53.0]}
    assert sent(server, 9, 1, 0)["means"] == {0: [36.0, 36.0]}  # one that has not answered yet


def test_teachers_are_the_others_last_outputs() -> None:
    server = after(Owners(), 0, k1=up({0: [1.0, 0.0]}, {0: HALF}), k2=up({0: [0.0, 1.0]}, {0: HALF}))
    server = after(server, 1, k2=up({0: [0.5, 0.5]}), k3=up({0: [0.25, 0.75]}, {0: HALF}))
    assert sent(server, 1, 2, 0)["teachers"] == {0: [0.375, 0.625]}
    assert sent(server, 3, 2, 0)["teachers"] == {0: [0.75, 0.25]}


def test_the_order_in_which_owners_have_joined_does_not_matter() -> None:
    """1 + 3e-8 is 1, and 18 · 3e-8 counts."""
    found = {f"k{k}": up({0: HALF}, {0: [1.0 if k == 1 else 3e-8, 0.0]}) for k in range(1, 20)}
    backwards = dict(reversed(found.items()))
    assert sent(after(Owners(), 0, **found), 0, 1, 0) == sent(after(Owners(), 0, **backwards), 0, 1, 0)


def test_a_class_with_one_owner_has_neither_mean_nor_teacher_for_it() -> None:
    server = after(Owners(), 0, k1=up({0: HALF}, {0: HALF}))
    assert sent(server, 1, 1, 0) == {"has_means": True, "teachers": {}, "means": {}}
    assert sent(server, 2, 1, 1) == {}
    assert sent(after(Owners(), 0, k1=up({})), 1, 1, 0) == {}  # it has too few samples to own any


def test_means_go_down_only_when_they_changed() -> None:
    server = after(Owners(), 0, k1=up({0: HALF}, {0: [2.0, 0.0]}))
    assert sent(server, 2, 1, 0)["means"] == {0: [2.0, 0.0]}
    server = after(server, 1, k2=up({0: HALF}, {0: [0.0, 0.0]}), k3=up({1: HALF}, {1: [1.0, 1.0]}))
    assert sent(server, 1, 2, 0)["means"] == {0: [0.0, 0.0]}  # k2 joined in the round after its last
    assert sent(server, 2, 2, 0)["means"] == {}  # it has k1's; its own joining is no news
    assert sent(server, 2, 2, 0)["teachers"] == {0: HALF}  # teachers go down in every round
    server = after(server, 2, k1=up({0: HALF}))  # k1 has got k2's
    assert sent(server, 1, 3, 0)["means"] == {}
    server = after(server, 3, k5=up({0: HALF}, {0: [6.0, 0.0]}))
    assert sent(server, 1, 4, 0)["means"] == {0: [3.0, 0.0]}
    assert sent(server, 2, 4, 0)["means"] == {0: [4.0, 0.0]}
    assert sent(server, 3, 4, 1)["means"] == {}  # of the class that did not change
    assert sent(server, 3, 4, 0, method=HFD(scope="all"))["means"].keys() == {0}  # class 1 is its own alone


def test_a_client_that_did_not_answer_is_sent_the_means_again() -> None:
    server = after(Owners(), 0, k1=up({0: HALF}, {0: [2.0, 0.0]}))
    again = after(server, 1, k3=up({1: HALF}, {1: [1.0, 1.0]}))  # k2 was asked, and was silent
    assert sent(again, 2, 2, 0) == sent(server, 2, 1, 0)


def test_with_scope_all_unseen_classes_are_taught_too() -> None:
    server = after(Owners(), 0, k1=up({0: HALF, 1: [0.2, 0.8]}, {0: [1.0, 0.0], 1: [0.0, 1.0]}))
    assert sent(server, 2, 1, 1)["teachers"].keys() == sent(server, 2, 1, 1)["means"].keys() == {1}
    every = sent(server, 2, 1, 1, method=HFD(scope="all"))
    assert every["teachers"].keys() == every["means"].keys() == {0, 1}


def test_after_its_first_answer_a_client_is_sent_what_it_owns() -> None:
    server = after(Owners(), 0, k1=up({0: HALF, 1: HALF}, {0: HALF, 1: HALF}))
    assert sent(server, 2, 1, 0, 1)["teachers"].keys() == {0, 1}  # nobody knows yet how many samples it has
    server = after(server, 1, k2=up({1: HALF}, {1: HALF}))
    assert sent(server, 2, 2, 0, 1)["teachers"].keys() == {1}


# -- numbers -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("num_classes", "num_seen", "numbers", "once"), [(10, 2, 20, 6_144), (100, 10, 1_000, 30_720)])
def test_numbers_up_and_down(num_classes: int, num_seen: int, numbers: int, once: int) -> None:
    task = Task(num_classes=num_classes, input_shape=(3072,), width=2, num_rounds=3)
    net, labels = tiny_net(task), tuple(range(num_seen)) * 2
    data = local_data(labels, size=3072)
    clients = [make_client(k, task=task, net=net, data=data, method=TWO, local=STILL) for k in range(2)]
    server, ups, downs = Owners(), list[int](), list[int]()
    for t in range(3):
        ctx, infos = server_at(t, task), [client.info() for client in clients]
        sent = [TWO.downlink(server, k, ctx) for k in infos]
        payloads = [upload_of(client, Up, message, t) for client, message in zip(clients, sent, strict=True)]
        server = TWO.aggregate(server, [Upload(*each) for each in zip(infos, payloads, strict=True)], ctx)
        downs += [num_params(sent[0])]
        ups += [num_params(payloads[0])]
    assert ups == [numbers + once, numbers, numbers]
    assert downs == [0, numbers + once, numbers]


# -- what is refused, and what is said ---------------------------------------------------------------------------------
def test_defaults_and_bounds() -> None:
    assert HFD() == HFD(gamma=0.1, min_samples=10, scope="seen")
    with pytest.raises(SettingsError, match=r"method\.min_samples = 1: should be greater than or equal to 2"):
        parse_settings(tiny(method={"name": "hfd", "min_samples": 1}))


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (up({1: HALF}), "^classes has classes that are not the client's own"),
        (up({0: HALF}, {1: HALF}), "^mean_classes has classes that are not the client's own"),
        (
            replace(up({0: HALF}, {0: HALF}), means=torch.zeros(1, 3)),
            r"means is float32 \[1, 3\], not float32 \[c, X\]",
        ),
    ],
)
def test_a_bad_upload_is_refused(payload: Up, match: str) -> None:
    with pytest.raises(AnswerError, match=match):
        TWO.check_upload(payload, info(1, 0), at(0, TASK))


def test_a_user_is_told_before_a_run_that_mean_inputs_are_data(tmp_path: Path) -> None:
    (said,) = HFD(min_samples=7).advice(at(-1))
    assert said.startswith("MEAN INPUTS ARE DATA")
    assert "7 or more (method.min_samples)" in said
    alone = tiny(partition={"clients": 5, "classes_per_client": 2}, method={"name": "hfd"})
    assert ["MEAN" in line for line in SimulatedClients.prepared(parse_settings(alone)).advice()] == [True, False]
    every = alone | {"method": {"name": "hfd", "scope": "all"}}  # then others do get a class that has one owner
    assert ["MEAN" in line for line in SimulatedClients.prepared(parse_settings(every)).advice()] == [True]


def test_site_check_says_it_too(tmp_path: Path) -> None:
    sites = sites_of(tiny(data=FEW, method={"name": "hfd", "min_samples": 2}), tmp_path)
    shown = preview(str(tmp_path / "site_0.py"), sites.federation)
    assert [line.startswith("MEAN INPUTS ARE DATA") for line in shown.advice] == [True]
    assert "means" in [name for name, *_ in shown.tensors]


def test_stopped_and_resumed_it_remembers_who_has_which_means(tmp_path: Path) -> None:
    table = tiny(data=FEW, rounds={"total": 4, "fraction": 0.5}, method={"name": "hfd", "min_samples": 2})
    whole = fedssa.run(table, out=tmp_path / "whole").path
    with closing(start(parse_settings(table), tmp_path / "stopped")) as begun:
        for record in begun.rounds():
            if record.t == 1:
                break
    resumed = fedssa.resume(tmp_path / "stopped").path
    assert (resumed / "rounds.jsonl").read_bytes() == (whole / "rounds.jsonl").read_bytes()
