"""A site obeys its coordinator and nobody else, and a coordinator believes the site that it asked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, RecordDict
from typing_extensions import override

from fedssa.deploy.messages import RECORD
from fedssa.deploy.signing import (
    ECDSA,
    order_digest,
    read_order_key,
    signed_answer,
    signed_order,
    with_signature,
)
from fedssa.deploy.site.node import node_command
from fedssa.deploy.site.respond import respond
from fedssa.errors import SettingsError
from fedssa.records import RoundRecord
from tests.deploy.in_process import InProcessGrid, Sites, node, record_in, said_in, site_key, sites_of
from tests.deploy.wrong import NOT_SIGNED, record_of, with_parts, with_said
from tests.tiny import FEW, tiny, tree

TABLE = tiny(data=FEW, rounds={"total": 2, "fraction": 1.0})
BAD, VICTIM = 1, 0
RUN = 1  # Flower's


class Ran:
    """A run of two rounds: what was asked in it, and what its sites have on disk."""

    def __init__(self, folder: Path) -> None:
        self.sites: Sites = sites_of(TABLE, folder)
        self.grid: InProcessGrid = self.sites.grid()
        self.records: list[RoundRecord] = list(self.sites.run(self.grid))

    def order(self, client: int, t: int) -> RecordDict:
        asked = (message for message, _ in self.grid.seen if message.metadata.dst_node_id == node(client))
        return next(message.content for message in asked if said_in(message)["t"] == t)

    def refusal(self, client: int, order: RecordDict, run: int = RUN) -> str | None:
        """What the site says to it; its disk is as it was."""
        config = self.sites.configs[node(client)]
        before = tree(Path(config["state-dir"]))
        said = json.loads(record_of(respond(order, config, run))["message"])["fields"]
        assert tree(Path(config["state-dir"])) == before
        word: str | None = said.get("refusal")
        return word


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("ran"))


def signed_by_a_site(records: RecordDict) -> RecordDict:
    key = load_ssh_private_key(site_key(BAD)["key"], password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return with_signature(records, key.sign(order_digest(records, RUN), ECDSA))


def signed_by_a_stranger(records: RecordDict) -> RecordDict:
    return signed_order(records, RUN, Ed25519PrivateKey.generate())[0]


FORGED: dict[str, Callable[[RecordDict], RecordDict]] = {
    "a later round": with_said(lambda said: said["fields"].update(t=7)),
    "another run of ours": with_said(lambda said: said["fields"].update(run="f" * 32)),
    "another client": with_said(lambda said: said["fields"].update(client=VICTIM)),
    "another payload": with_parts(tensors=bytes(8)),
    "the signature of another registered site": signed_by_a_site,
    "a stranger's signature": signed_by_a_stranger,
    "half a signature": with_parts(signature=b"\0" * 32),
    "a signature that is none": with_parts(signature="signed"),
    "no signature": lambda records: RecordDict(
        {RECORD: ConfigRecord({k: v for k, v in record_of(records).items() if k != "signature"})}
    ),
    "nothing": lambda _: RecordDict(),
}


@pytest.mark.parametrize("kind", FORGED)
def test_what_the_coordinator_did_not_sign_is_not_obeyed(ran: Ran, kind: str) -> None:
    order = ran.order(VICTIM, 1)
    assert ran.refusal(VICTIM, order) is None  # as it is, it is answered
    assert ran.refusal(VICTIM, FORGED[kind](order)) == "not-signed"
    assert ran.refusal(VICTIM, FORGED[kind](ran.order(VICTIM, -1))) == "not-signed"  # nor is a hello


def test_an_order_of_another_run_of_flower_an_old_one_and_another_clients_are_refused(ran: Ran) -> None:
    assert ran.refusal(VICTIM, ran.order(VICTIM, 1), run=RUN + 1) == "not-signed"
    assert ran.refusal(VICTIM, ran.order(VICTIM, 0)) == "ahead"
    assert ran.refusal(VICTIM, ran.order(BAD, 1)) == "other-client"
    assert ran.refusal(VICTIM, ran.order(BAD, -1)) == "other-client"


# -- answers -------------------------------------------------------------------------------------------------------
class Forger(InProcessGrid):
    """Client BAD answers in the place of the victim, whose own answers are lost, as often as `forgeries` says."""

    forgeries = 0

    @override
    def _deliver(self, message: Message) -> str:
        pushed = super()._deliver(message)
        asked, reply = self.seen[-1]
        if self.forgeries and asked.metadata.dst_node_id == node(VICTIM) and reply.metadata.message_type == "train":
            self.forgeries -= 1
            order = order_digest(asked.content, RUN)
            key = Path(self.configs[node(BAD)]["key"])
            forged = Message(signed_answer(reply.content, order, key), reply_to=asked)
            self._replies[pushed] = forged
        return pushed


class Replayer(InProcessGrid):
    """In the place of some nodes' answers it gives what was recorded."""

    def __init__(self, configs: dict[int, dict[str, Any]]) -> None:
        super().__init__(configs)
        self.replayed: dict[int, RecordDict] = {}

    @override
    def _deliver(self, message: Message) -> str:
        pushed = super()._deliver(message)
        if old := self.replayed.get(message.metadata.dst_node_id):
            self._replies[pushed] = Message(old, reply_to=self.seen[-1][0])
        return pushed


def test_an_answer_that_another_site_signed_is_asked_for_again(ran: Ran, tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path)
    grid = Forger(dict(sites.configs))
    grid.forgeries = 2
    assert list(sites.run(grid)) == ran.records
    assert [(f.site, f.reason, f.kind) for f in sites.faults()] == [(f"c{VICTIM}", NOT_SIGNED, "dropped")] * 2


def test_an_answer_to_an_earlier_order_is_none_to_this_one(ran: Ran, tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path)
    grid = Replayer(dict(sites.configs))
    records = []
    for record in sites.run(grid):
        records.append(record)
        if record.t == 0:
            old = next(r for a, r in grid.seen if r.metadata.src_node_id == node(VICTIM) and said_in(a)["t"] == 0)
            grid.replayed[node(VICTIM)] = old.content
    assert [record.absent for record in records] == [(), (), (VICTIM,)]
    assert {f.reason for f in sites.faults()} == {NOT_SIGNED}


def test_who_cannot_read_its_key_is_not_believed_and_says_why_at_its_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = sites_of(TABLE, tmp_path, join_deadline=0.1)
    (tmp_path / f"key-{BAD}").unlink()
    assert next(sites.run(sites.grid())).num_heard == 3
    assert NOT_SIGNED in sites.faults()[0].reason
    assert f"key-{BAD}: cannot be read" in caplog.text


def test_without_keys_orders_are_signed_and_answers_are_not(tmp_path: Path) -> None:
    sites = sites_of(tiny(data=FEW, rounds={"total": 1, "fraction": 1.0}), tmp_path, keys=False)
    grid = sites.grid()
    list(sites.run(grid))
    assert all("signature" in record_in(asked) and "signature" not in record_in(reply) for asked, reply in grid.seen)


# -- files ---------------------------------------------------------------------------------------------------------
def test_a_site_without_its_coordinators_key_is_told_before_it_joins(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "federation.toml").touch()
    arguments = ("site.py", 0, tmp_path / "federation.toml", tmp_path, "127.0.0.1:1", 2, None)
    with pytest.raises(SettingsError, match=r"coordinator\.pub: cannot be read .*; ask the coordinator for this file"):
        node_command(*arguments)
    (tmp_path / "coordinator.pub").write_bytes(site_key(0)["key.pub"])
    with pytest.raises(SettingsError, match=r"coordinator\.pub: is a key of another kind"):
        node_command(*arguments)


def test_a_coordinators_key_that_is_none_is_told(tmp_path: Path) -> None:
    for content, said in ((b"x", "cannot be read"), (site_key(0)["key"], "is a key of another kind")):
        (tmp_path / "coordinator.key").write_bytes(content)
        with pytest.raises(SettingsError, match=said):
            read_order_key(tmp_path)
