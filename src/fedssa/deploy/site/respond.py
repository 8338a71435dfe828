"""A site responds to a message with a hello, or runs a round and remembers it. Whatever happens, it answers.

It obeys the coordinator whose public key it was given and nobody else, and signs what it says with its own key. An
exception of its own code would reach the server with its text, so none passes here: the reason stays in this site's
log, and the server gets one word of `Refusal`.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedssa.core.client import AnyAnswer, Client
from fedssa.deploy.messages import Refusal, Reply, Request, Why, agreement_in, request_in, to_records
from fedssa.deploy.signing import is_order_of, order_digest, read_coordinator, signed_answer
from fedssa.deploy.site.disk import Saved, StateBusy, StateDir, StateNotWritten
from fedssa.errors import AnswerError, Diverged, FedSSAError, SettingsError
from fedssa.models.fingerprint import check_unchanged
from fedssa.sites.agreement import Federation, OtherPublicData, read_federation
from fedssa.sites.site import advice_on_data, client_of

log = logging.getLogger("flwr")  # Flower's own: a site's owner finds everything in one place

AGREED = " in federation.toml, which is the coordinator's to change"
NAMED: dict[type[FedSSAError], Why] = {  # what the server may know by name
    OtherPublicData: "other-public-data",
    Diverged: "diverged",
    StateBusy: "busy",
    StateNotWritten: "disk",
}


class Refused(FedSSAError):
    """The site does not answer this request."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why = why


def respond(records: RecordDict, node_config: Mapping[str, Any], flower_run: int) -> RecordDict:
    order = order_digest(records, flower_run)
    reply = _reply(records, order, node_config)
    if "key" not in node_config:  # on loopback, without keys
        return reply
    try:
        return signed_answer(reply, order, Path(_option(node_config, "key")))
    except SettingsError as error:  # nobody will believe it
        log.error("fedssa: %s", error)
        return reply


def _reply(records: RecordDict, order: bytes, node_config: Mapping[str, Any]) -> RecordDict:
    try:
        return _respond(records, order, node_config)
    except Refused as refused:
        log.error("fedssa: refused: %s", refused.why)
        return to_records(Refusal(refused.why))
    except tuple(NAMED) as error:
        log.error("fedssa: %s%s", error, AGREED if isinstance(error, Diverged) else "")
        return to_records(Refusal(next(why for kind, why in NAMED.items() if isinstance(error, kind))))
    except (Exception, SystemExit):  # a site's own code may raise anything
        log.exception("fedssa: this site could not answer")
        return to_records(Refusal("failed"))


def _respond(records: RecordDict, order: bytes, node_config: Mapping[str, Any]) -> RecordDict:
    federation = read_federation(Path(_option(node_config, "federation")))
    if not is_order_of(read_coordinator(federation.folder), records, order):
        raise Refused("not-signed")
    request = _read(records, federation)
    client = int(_option(node_config, "client-id"))
    if request.client not in (-1, client):
        raise Refused("other-client")
    site = _option(node_config, "site")
    if request.t < 0:
        start = client_of(site, federation, client)
        for advice in advice_on_data(site, start.data):
            log.warning("fedssa: %s", advice)
        if account := federation.account(start.privacy):
            log.info("fedssa: %s", account.in_words)
        return to_records(start.hello(evaluate_start=request.evaluate_start))
    answer = _run_round(request, federation, site, client, StateDir(Path(_option(node_config, "state-dir"))))
    return to_records(Reply(request.run, request.t, answer))


def _read(records: RecordDict, federation: Federation) -> Request[Any]:
    try:
        if agreement_in(records) == federation.agreement:
            return request_in(records, federation.settings.method)
    except AnswerError as error:
        log.error("fedssa: %s", error)
        raise Refused("bad-request") from error
    raise Refused("other-federation")


def _run_round(request: Request[Any], federation: Federation, site: str, client_id: int, disk: StateDir) -> AnyAnswer:
    method = federation.settings.method
    if request.t >= federation.settings.rounds.total:  # a site would spend more privacy than it was told
        raise Refused("bad-request")
    with disk.locked():
        saved = disk.load(request.run)
        last = saved.t if saved else -1
        if last < request.heard:
            raise Refused("lost-state")
        if last > request.t:
            raise Refused("ahead")
        if saved and last == request.t:
            log.info("fedssa: round %d was trained before; its answer is sent again", request.t)
            return saved.answer_of(method)
        client = client_of(site, federation, client_id)
        if saved:
            check_unchanged(disk.folder, site, client.net, saved.model, lambda told: log.warning("fedssa: %s", told))
            client.load_state(saved.state)
        _check_downlink(request, federation, client)
        answer = client.run_round(request.down, request.t)
        disk.save(Saved.after(request.run, request.t, federation, answer, client))
    log.info("fedssa: round %d: %s", request.t, _in_words(answer))
    return answer


def _in_words(answer: AnyAnswer) -> str:
    if answer.loss is None or answer.scores.headline is None:
        return "trained; its loss and accuracy are kept back"
    return f"loss {answer.loss:.4f}, test accuracy {100 * answer.scores.headline:.2f} %"


def _check_downlink(request: Request[Any], federation: Federation, client: Client) -> None:
    """Checks what the server sent as closely as the server checks what a site sends."""
    try:
        federation.settings.method.check_downlink(request.down, client.info(), federation.context().at(request.t))
    except AnswerError as error:
        log.error("fedssa: %s", error)
        raise Refused("bad-request") from error


def _option(node_config: Mapping[str, Any], name: str) -> str:
    if name not in node_config:
        raise SettingsError(f"--node-config: has no {name}; start this node with: fedssa site run")
    return str(node_config[name])
