"""What a site does with a message: say hello, or run a round and remember it. Whatever happens, it answers.

An exception of its own code would reach the server with its text, so none passes here: the reason stays in this
site's log, and the server gets one word of `Refusal`.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedssa.core.client import Answer
from fedssa.deploy.agreement import Federation, read_federation
from fedssa.deploy.messages import (
    Refusal,
    Request,
    answer_to_records,
    info_to_records,
    refusal_to_records,
    request_from_records,
)
from fedssa.deploy.site.disk import Saved, StateBusy, StateDir
from fedssa.deploy.site.site import client_of
from fedssa.errors import AnswerError, Diverged, FedSSAError, SettingsError

log = logging.getLogger("flwr")  # Flower's own: a site's owner finds everything in one place


class Refused(FedSSAError):
    """The site does not answer this request."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why


def respond(records: RecordDict, node_config: Mapping[str, Any]) -> RecordDict:
    try:
        return _respond(records, node_config)
    except Refused as refused:
        log.error("fedssa: refused: %s", refused.why)
        return refusal_to_records(refused.why)
    except (Diverged, StateBusy) as error:
        log.error("fedssa: %s", error)
        return refusal_to_records("diverged" if isinstance(error, Diverged) else "busy")
    except (Exception, SystemExit):  # a site's own code may raise anything
        log.exception("fedssa: this site could not answer")
        return refusal_to_records("failed")


def _respond(records: RecordDict, node_config: Mapping[str, Any]) -> RecordDict:
    try:
        request = request_from_records(records)
    except AnswerError as error:
        log.error("fedssa: %s", error)
        raise Refused("bad-request") from error
    federation = read_federation(Path(_option(node_config, "federation")))
    if request.agreement != federation.agreement:
        raise Refused("other-federation")
    client = int(_option(node_config, "client-id"))
    if request.client not in (-1, client):
        raise Refused("other-client")
    site = _option(node_config, "site")
    if request.t < 0:
        start = client_of(site, federation, client)
        return info_to_records(start.hello(evaluate_start=request.evaluate_start))
    answer = _run_round(request, federation, site, client, StateDir(Path(_option(node_config, "state-dir"))))
    return answer_to_records(answer, request.run, request.t)


def _run_round(request: Request, federation: Federation, site: str, client_id: int, disk: StateDir) -> Answer:
    with disk.locked():
        saved = disk.load(request.run)
        last = saved.t if saved else -1
        if last < request.heard:
            raise Refused("lost-state")
        if last > request.t:
            raise Refused("ahead")
        if saved and last == request.t:
            log.info("fedssa: round %d was trained before; its answer is sent again", request.t)
            return saved.answer
        client = client_of(site, federation, client_id)
        if saved:
            client.load_state(saved.state)
        assert request.down is not None
        answer = client.run_round(request.down, request.t)
        disk.save(Saved(request.run, request.t, federation.agreement, federation.task, answer, client.state()))
    log.info("fedssa: round %d: loss %.4f, test accuracy %.2f %%", request.t, answer.loss, 100 * answer.scores.headline)
    return answer


def _option(node_config: Mapping[str, Any], name: str) -> str:
    if name not in node_config:
        raise SettingsError(f"--node-config: has no {name}; start this node with: fedssa site run")
    return str(node_config[name])
