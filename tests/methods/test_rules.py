"""Every method under attack, and by every rule of aggregation that it takes."""

from dataclasses import replace

import pytest

from fedssa.core.averaging import Clipped, Krum, Median, Rule, Trimmed
from fedssa.core.hostile import ATTACKS, SignFlip
from fedssa.core.message import tensors_in
from fedssa.core.method import Upload
from fedssa.methods import METHODS
from fedssa.settings.recipe import parse_settings, why_unfit
from tests.methods.contract import tiny_of
from tests.tiny import FEWER_EPOCHS, tiny

EIGHT = [(0, 1, 2), (0, 0, 1, 2)] * 4  # labels of clients who all have all classes, in two groups of four
AVERAGE = [name for name, cls in METHODS.items() if cls.averages]
HOSTILE = 2


@pytest.mark.parametrize("name", METHODS)
def test_servers_accept_every_attack(name: str) -> None:
    """So that an attack is met by the rule, or by nothing."""
    method = METHODS[name](**FEWER_EPOCHS.get(name, {}))
    tiny_one = tiny_of(method, EIGHT[:1])
    ctx, server, (client,) = tiny_one.ctx.at(0), tiny_one.start(), tiny_one.clients
    answer = client.run_round(method.downlink(server, client.info(), ctx), 0)
    for attack in ATTACKS.values():
        sent = attack().uploaded(answer, 0, 0)
        method.check_upload(sent.payload, client.info(), ctx)


def largest(message: object) -> float:
    floats = (t for t in tensors_in(message).values() if t.is_floating_point() and t.numel())
    return max((float(tensor.abs().max()) for tensor in floats), default=0.0)


@pytest.mark.parametrize("name", AVERAGE)
def test_no_upload_gets_past_a_rule(name: str) -> None:
    """One of eight is a million times as large; what the server knows next is not, and is what a site accepts."""
    method = METHODS[name](**FEWER_EPOCHS.get(name, {}))
    tiny_one = tiny_of(method, EIGHT)
    server, infos = tiny_one.start(), tiny_one.infos
    downs = [method.downlink(server, info, tiny_one.ctx.at(0)) for info in infos]
    answers = [client.run_round(down, 0) for client, down in zip(tiny_one.clients, downs, strict=True)]
    usual = max(largest(message) for message in (server, *(answer.payload for answer in answers)))
    answers[HOSTILE] = SignFlip(strength=1e6).uploaded(answers[HOSTILE], 0, 0)
    uploads = [Upload(info, answer.payload) for info, answer in zip(infos, answers, strict=True)]
    rules: list[Rule] = [Median(), Trimmed(), Clipped(), *([Krum()] if method.groups == "none" else [])]
    for rule in rules:  # groups of four are too few for Krum
        ctx = replace(tiny_one.ctx, rule=rule).at(0)
        after = method.aggregate(server, uploads, ctx)
        assert set(ctx.cuts.pieces) == {info.id for info in infos}
        assert not ctx.cuts.too_few
        assert largest(after) < 100 * usual
        for info in infos:
            method.check_downlink(method.downlink(after, info, ctx.at(1)), info, ctx.at(1))


def test_methods_that_do_not_average_refuse_a_rule() -> None:
    settings = parse_settings(tiny(aggregation={"rule": "median"}))
    why = "does not average all that clients upload, or has its own rule; leave out [aggregation]"
    refused = {name for name, cls in METHODS.items() if why_unfit(cls, settings) == why}
    assert set(METHODS) - refused == set(AVERAGE)
    assert {"standalone", "cronus", "fedgh", "fedtgp", "fedhenn", "kt-pfl", "fd"} <= refused
    assert {"fedssa", "fedssa-plus", "fedssa-groups", "fedproto", "lg-fedavg", "fedavg", "fedkd"} <= set(AVERAGE)
