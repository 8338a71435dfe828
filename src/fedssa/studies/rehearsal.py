"""A rehearsal finds how much a method would send in a recipe's federation, without training anything for real.

The method itself runs, with the recipe's models, classes and public samples, and its messages are counted as in a run:
so what depends on options or data is counted too. Each phase makes one step, since steps change no sizes; what
compresses what was learnt (FedKD) may therefore send more or less in a run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedssa.core.client import AnyAnswer, AnyMethod, Client, ClientInfo
from fedssa.core.context import Context
from fedssa.core.method import Method
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.samples import LocalData
from fedssa.core.training import Phase
from fedssa.records import RoundRecord
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.studies.plan import with_method

A_CLASS = 2  # samples in the one step of a phase, because batch normalisation cannot train on one


@dataclass(frozen=True)
class Numbers:
    """Holds floating-point values a participant and round, of a typical client of each architecture."""

    up: tuple[int, ...]
    down: tuple[int, ...]
    server_flops: int | None  # of the round's few clients; None: the server does not train
    num_public: int = 0  # P, of which the numbers are, if the method uses public data
    bytes_up: tuple[int, ...] = ()  # all that is sent: numbers, ids and counts
    bytes_down: tuple[int, ...] = ()


class Rehearsal:
    """Reads the recipe's data once, for all methods."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table, self._clients = table, SimulatedClients.prepared(parse_settings(table))

    def numbers(self, method: str) -> Numbers:
        """Runs up to three rounds, of which the last is counted; raises what a run would raise before it starts."""
        settings = parse_settings(with_method(self._table, method))
        settings.method.refuse_unfit(self._clients.task, settings.server)
        brief = replace(settings, method=_brief(settings.method), server=replace(settings.server, epochs=1))
        clients = self._clients.with_settings(brief)
        record, public = _last_round(clients), clients.public if settings.method.needs_public != "no" else None
        return Numbers(
            tuple(client.params_up for client in record.clients),
            tuple(client.params_down for client in record.clients),
            record.server_flops,
            0 if public is None else public.num,
            tuple(client.bytes_up for client in record.clients),
            tuple(client.bytes_down for client in record.clients),
        )


def _last_round(clients: SimulatedClients) -> RoundRecord:
    settings, cast = clients.settings, _cast(clients)
    missed = [cast.others[:1]] if settings.rounds.fraction < 1 and cast.others else []
    turns = [cast.typical + cast.others, *missed, cast.typical][: settings.rounds.total]
    *_, last = run_rounds(
        settings.method,
        _Stage(clients, turns),
        replace(clients.server_context(), is_rehearsal=True),
        Rounds(total=len(turns)),
        evaluate_start=False,
        num_clients=len(clients.infos),
    )
    return last.record


@dataclass(frozen=True)
class _Cast:
    typical: list[int]  # one client of each architecture, with as many classes as most have
    others: list[int]  # who holds their classes too or has their architecture, as far as anybody does


def _cast(clients: SimulatedClients) -> _Cast:
    groups: dict[str, list[ClientInfo]] = {}
    for info in clients.infos:
        groups.setdefault(clients.settings.archs[clients.groups[info.id]].label, []).append(info)
    typical = [sorted(group, key=_num_classes)[(len(group) - 1) // 2] for group in groups.values()]
    others = [mate for group, one in zip(groups.values(), typical, strict=True) for mate in _without(one, group)[:1]]
    for one in typical:
        for label in one.seen_classes:
            if not any(label in other.seen_classes for other in _without(one, typical + others)):
                others += [other for other in _without(one, clients.infos) if label in other.seen_classes][:1]
    return _Cast([info.id for info in typical], [info.id for info in others])


def _without(one: ClientInfo, infos: Sequence[ClientInfo]) -> list[ClientInfo]:
    return [info for info in infos if info != one]


def _num_classes(info: ClientInfo) -> int:
    return len(info.seen_classes)


class _Stage:
    """A federation of which only those take part whose turn it is; the others are absent."""

    def __init__(self, clients: SimulatedClients, turns: Sequence[Sequence[int]]) -> None:
        self._infos = [clients.infos[k] for k in sorted(set(turns[0]))]
        self._turns, self._players = turns, {info.id: _player(clients, info.id) for info in self._infos}

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        return self._infos

    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        return [self._players[k].run_round(downlinks[k], t) for k in self._turns[t]]


def _player(clients: SimulatedClients, number: int) -> Client:
    """Builds a client that has all its training samples, since some methods send something of each, and little else."""
    client = clients.client(number, counts_flops=False)
    few = torch.arange(1)
    client.data = LocalData(client.data.train, client.data.val.take(few), client.data.test.take(few))
    return client


# -- one step a phase ----------------------------------------------------------------------------------------------
def _brief(method: AnyMethod) -> AnyMethod:
    """Makes the same method with one step in each phase on private samples, and none in the others."""
    kind: Any = type(method)

    def phases(self: AnyMethod, client: Client, ctx: Context) -> Iterator[Phase]:
        return (_one_step(phase, client) for phase in kind.phases(self, client, ctx))

    briefly: Any = type(kind.__name__, (kind,), {"phases": phases, "tuning": Method.tuning})
    made: AnyMethod = briefly(**{option.name: getattr(method, option.name) for option in fields(kind)})
    return made


def _one_step(phase: Phase, client: Client) -> Phase:
    if not phase.is_private:
        return replace(phase, epochs=0)
    pool = phase.data if isinstance(phase.data, Tensor) else torch.arange(len(client.data.train))
    labels = client.data.train.y[pool]
    some = torch.cat([pool[labels == label][:A_CLASS] for label in torch.unique(labels)])
    return replace(phase, data=some, epochs=1, batch_size=len(some))
