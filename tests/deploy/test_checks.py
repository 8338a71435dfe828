"""Every method tells uploads that its own uplink could have sent from others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedssa.core.client import Client
from fedssa.core.method import Method
from fedssa.core.payload import Tensors
from fedssa.core.split import SplitModel
from fedssa.errors import AnswerError
from fedssa.methods import METHODS, PRESETS, FedKD, FedProto, FedSSA
from fedssa.methods.fedkd import FAILED
from tests.conftest import TASK, make_client

FORMS: dict[str, Method] = {
    **{name: cls() for name, cls in METHODS.items()},
    **{name: cls(**options) for name, (cls, options) in PRESETS.items()},
    "masked": FedSSA(upload_form="masked"),
    "masked, all": FedSSA(upload_form="masked", shared_rows="all"),
    "counted": FedSSA(class_weights="count"),
    "counted, all": FedSSA(class_weights="count", shared_rows="all"),
}


def client_with(method: Method) -> Client:
    """With the one architecture that all have, where a method asks for that."""
    net = SplitModel(nn.Linear(4, 2), nn.Linear(2, 3), channels_last=False)
    return make_client(train=(0, 0, 2, 2, 2), method=method, net=net)


@pytest.fixture(params=FORMS)
def sent(request: pytest.FixtureRequest) -> tuple[Method, Client, Tensors]:
    method = FORMS[request.param]
    client = client_with(method)
    server = method.server_init(TASK, 0)
    down = method.downlink(server, client.hello(evaluate_start=False), 0)
    return method, client, client.run_round(down, 0).payload


def check(method: Method, client: Client, payload: Tensors) -> None:
    method.check_upload(TASK, client.hello(evaluate_start=False), payload)


def test_what_a_client_really_sends_is_good(sent: tuple[Method, Client, Tensors]) -> None:
    check(*sent)


def test_one_more_tensor_is_not(sent: tuple[Method, Client, Tensors]) -> None:
    method, client, payload = sent
    with pytest.raises(AnswerError, match="other tensors than the method sends"):
        check(method, client, payload | {"more": torch.zeros(1)})


def test_another_type_or_shape_of_any_tensor_is_not(sent: tuple[Method, Client, Tensors]) -> None:
    method, client, payload = sent
    for name, tensor in payload.items():
        for other in (tensor.to(torch.float16), torch.cat([tensor, tensor]), tensor[None]):
            with pytest.raises(AnswerError):
                check(method, client, payload | {name: other})


def test_rows_of_classes_it_has_not_seen_are_not(sent: tuple[Method, Client, Tensors]) -> None:
    method, client, payload = sent
    if "classes" in payload:
        for classes in (payload["classes"] + 1, payload["classes"].flip(0) - 1, payload["classes"] * 0):
            with pytest.raises(AnswerError, match="other classes than its own"):
                check(method, client, payload | {"classes": classes})


def refused(method: Method, change: dict[str, Any]) -> str:
    client = client_with(method)
    payload = client.run_round({}, 0).payload
    with pytest.raises(AnswerError) as caught:
        check(method, client, payload | change)
    return str(caught.value)


def test_a_masked_header_is_silent_about_unseen_classes() -> None:
    assert "other classes" in refused(FedSSA(upload_form="masked"), {"rows": torch.ones(3, 3)})


def test_counts_are_those_of_the_training_samples() -> None:
    for counts in ([2, 4], [-1, 6], [2**62, 2**62 + 5]):
        for method in (FedSSA(class_weights="count"), FedProto()):
            assert "count" in refused(method, {"counts": torch.tensor(counts)})


def test_failed_svds_are_fewer_than_tensors() -> None:
    assert "failed SVDs" in refused(FedKD(), {FAILED: torch.tensor(10**9)})
    assert "failed SVDs" in refused(FedKD(), {FAILED: torch.tensor(-1)})


def test_a_factor_without_the_others_or_of_another_rank_is_not() -> None:
    """A mentee large enough to be sent as factors."""

    def shared() -> SplitModel:
        return SplitModel(nn.Linear(40, 30), nn.Linear(30, 3), channels_last=False)

    task = replace(TASK, input_shape=(40,), width=30, build_shared=shared)
    method = FedKD()
    client = make_client(task=task, method=method)
    info = client.hello(evaluate_start=False)
    payload = client.run_round({}, 0).payload
    factor = "extractor.weight:u"
    assert factor in payload
    method.check_upload(task, info, payload)
    for wrong in (
        {name: tensor for name, tensor in payload.items() if name != factor},
        payload | {factor: payload[factor][:, :0].clone()},
        payload | {"extractor.weight": torch.zeros(30, 40)},
    ):
        with pytest.raises(AnswerError):
            method.check_upload(task, info, wrong)
