"""Every method tells uploads that its own uplink could have sent from others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedssa.core.client import AnyMethod, Client
from fedssa.core.message import Nothing, decode, encode, tensors_in
from fedssa.core.samples import Input
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors
from fedssa.errors import AnswerError
from fedssa.methods import HFD, METHODS, PRESETS, FedKD, FedProto, FedSSA
from tests.conftest import PUBLIC, TASK, at, declared, make_client, server_at, tiny_net

FORMS: dict[str, AnyMethod] = {
    **{name: cls() for name, cls in METHODS.items()},
    **{name: cls(**preset.settings) for name, (cls, preset) in PRESETS.items()},
    "masked": FedSSA(upload_form="masked"),
    "masked, all": FedSSA(upload_form="masked", shared_rows="all"),
    "counted": FedSSA(class_weights="count"),
    "counted, all": FedSSA(class_weights="count", shared_rows="all"),
    "hfd": HFD(min_samples=2),  # by default this client has too few samples to send anything
}
Sent = tuple[AnyMethod, Client, Any]


def client_with(method: AnyMethod) -> Client:
    """With the one architecture that all have, and with public data and a group where a method asks for them."""
    one = SplitModel(nn.Linear(4, 2), nn.Linear(2, 3), channels_last=False)
    net = tiny_net() if method.groups == "architecture" else one  # that one is the task's prototype
    return make_client(train=(0, 0, 2, 2, 2), method=method, net=net, **declared(method, net))


@pytest.fixture(params=FORMS)
def sent(request: pytest.FixtureRequest) -> Sent:
    method = FORMS[request.param]
    client = client_with(method)
    server = method.server_init(server_at(-1, public=PUBLIC))
    down = method.downlink(server, client.hello(evaluate_start=False), server_at(0, public=PUBLIC))
    return method, client, client.run_round(down, 0).payload


def check(method: AnyMethod, client: Client, payload: object, task: Task = TASK) -> None:
    method.check_upload(payload, client.hello(evaluate_start=False), at(0, task, public=PUBLIC))


def changed(method: AnyMethod, payload: object, change: Tensors, without: str = "") -> Any:
    """What arrives if somebody replaces tensors on the way, adds some, or drops one."""
    meta, tensors = encode(payload)
    return decode(method.messages().up, meta, {k: t for k, t in (tensors | change).items() if k != without})


def test_what_a_client_really_sends_is_good(sent: Sent) -> None:
    check(*sent)


def test_one_more_tensor_is_not(sent: Sent) -> None:
    method, _, payload = sent
    if method.shares:
        with pytest.raises(AnswerError, match=r"^more is no field of "):
            changed(method, payload, {"more": torch.zeros(1)})


def test_an_upload_is_there_if_the_method_has_one_and_only_then(sent: Sent) -> None:
    method, client, payload = sent
    assert (payload is not None) == method.shares
    message = "without the method's upload" if method.shares else "an upload, and the method has none"
    with pytest.raises(AnswerError, match=message):
        check(method, client, None if method.shares else Nothing())


def test_another_type_or_shape_of_any_tensor_is_not(sent: Sent) -> None:
    method, client, payload = sent
    for name, tensor in tensors_in(payload).items():
        for other in (tensor.to(torch.float16), torch.cat([tensor, tensor]), tensor[None]):
            with pytest.raises(AnswerError):
                check(method, client, changed(method, payload, {name: other}))


def test_no_tensor_may_be_missing(sent: Sent) -> None:
    method, client, payload = sent
    for name in tensors_in(payload) if method.shares and not isinstance(method, FedKD) else ():  # zero: not sent
        with pytest.raises(AnswerError):
            check(method, client, changed(method, payload, {}, without=name))


def test_numbers_that_are_none_are_not(sent: Sent) -> None:
    method, client, payload = sent
    for name, tensor in tensors_in(payload).items():
        if tensor.is_floating_point():
            with pytest.raises(AnswerError, match=f"^{name} (holds NaN or infinity|has rows that are no prob)"):
                check(method, client, changed(method, payload, {name: tensor * float("nan")}))


def test_rows_of_classes_it_has_not_seen_are_not(sent: Sent) -> None:
    method, client, payload = sent
    own = tensors_in(payload).get("classes")
    if own is not None:
        for classes in (own + 1, own.flip(0) - 1, own * 0, torch.tensor([0, 1, 2])[: len(own)] + (len(own) == 3)):
            with pytest.raises(AnswerError, match="classes"):
                check(method, client, changed(method, payload, {"classes": classes}))


def refused(method: AnyMethod, **change: Any) -> str:
    client = client_with(method)
    payload: Any = client.run_round(None, 0).payload
    with pytest.raises(AnswerError) as caught:
        check(method, client, replace(payload, **change))
    return str(caught.value)


def test_a_masked_header_is_silent_about_unseen_classes() -> None:
    assert "other classes" in refused(FedSSA(upload_form="masked"), rows=torch.ones(3, 3))


def test_counts_are_those_of_the_training_samples() -> None:
    for counts in ([2, 4], [-1, 6], [2**62, 2**62 + 5]):
        for method in (FedSSA(class_weights="count"), FedProto()):
            assert "count" in refused(method, counts=torch.tensor(counts))


def test_failed_svds_are_fewer_than_tensors() -> None:
    assert "failed SVDs" in refused(FedKD(), failed_svds=10**9)
    assert "failed_svds = -1 should be at least 1" in refused(FedKD(), failed_svds=-1)


def test_a_factor_without_the_others_or_of_another_rank_is_not() -> None:
    """A mentee large enough to be sent as factors."""

    def shared() -> SplitModel:
        return SplitModel(nn.Linear(40, 30), nn.Linear(30, 3), channels_last=False)

    task = replace(TASK, inputs=Input((40,)), width=30, build_shared=shared)
    method = FedKD()
    client = make_client(task=task, method=method)
    payload: Any = client.run_round(None, 0).payload
    weight = "extractor.weight"
    factor = payload.u[weight]
    check(method, client, payload, task)
    for wrong in (
        changed(method, payload, {}, without=f"u.{weight}"),
        changed(method, payload, {f"u.{weight}": factor[:, :0].clone()}),
        changed(method, payload, {f"whole.{weight}": torch.zeros(30, 40)}),
        changed(method, payload, {"whole.nothing": torch.zeros(1)}),
    ):
        with pytest.raises(AnswerError):
            check(method, client, wrong, task)
