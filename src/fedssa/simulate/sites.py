"""Sites are simulated here: as the clients that they would be in a deployment, bit for bit."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedssa.accounting.flops import FlopCounter, counting
from fedssa.core.client import AnyAnswer, Client, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.public import Public
from fedssa.core.rounds import advice_on_rounds
from fedssa.core.samples import LocalData, named
from fedssa.core.split import SplitModel
from fedssa.core.tensors import Tensors, digest
from fedssa.models.fingerprint import fingerprint
from fedssa.settings.about import about
from fedssa.simulate.clients import advice_on_infos, slots_within
from fedssa.simulate.engine.slots import Slots
from fedssa.sites.settings import SiteSettings
from fedssa.sites.site import Loaded, advice_on_data, client_from, loaded


class SiteClients:
    """A site's code runs once in each process, as it runs for each message of a deployment; its models are made anew.

    Sites do not count FLOPs, because these hint at a model's size. A simulation does.
    """

    given_names: tuple[str, ...] = ()  # the settings have them
    dealt_digest = ""  # nothing is dealt
    hostile: tuple[int, ...] = ()  # sites are honest

    def __init__(self, settings: SiteSettings) -> None:
        self.settings, self.federation = settings, settings.federation
        self.task, self.messages = self.federation.task, settings.method.messages()
        self.groups = list(range(len(settings.sites)))  # any two may have different models
        self._flops = FlopCounter()
        self._loaded: dict[int, Loaded] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return self.federation.clients

    @property
    def public(self) -> Public | None:
        return self.federation.public

    def own_devices(self) -> dict[str, str]:
        """Returns the devices of the sites that have said one; a device that is not there is refused."""
        own = [k for k in self.groups if self._site(k).site.device is not None]
        return {self.names[k]: str(self.client(k).device) for k in own}

    @cached_property
    def infos(self) -> list[ClientInfo]:
        return [self.client(client).info() for client in self.groups]

    @cached_property
    def digest(self) -> str:
        """Covers every sample and every weight at the start, which another version of a site's code might change."""
        clients = map(self.client, self.groups)
        return sha256("".join(digest(c.state()) + digest(_tensors(c.data)) for c in clients).encode()).hexdigest()

    @property
    def about_data(self) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
        return self.digest, self.federation.task_section.class_names, self.task.input_shape

    def _site(self, client: int) -> Loaded:
        if client not in self._loaded:
            name = self.names[client]
            has = loaded(self.settings.sites[client], self.federation, client, name)
            has.refuse_other_than(name)
            self._loaded[client] = has
        return self._loaded[client]

    def client(self, client: int) -> Client:
        return client_from(self._site(client), self.federation, client, self._flops.of_round, noise_from="seed")

    def called(self, client: int) -> str:
        return self.names[client]

    def returning(self, client: int) -> Client:
        """Builds the client anew, as every message of a deployment does: its model may hold anything."""
        return self.client(client)

    def copies(self, client: int) -> bool:
        return False

    def sent(self, answer: AnyAnswer, t: int) -> AnyAnswer:
        return answer

    def net(self, client: int) -> SplitModel:
        return self.client(client).net

    def fingerprints(self) -> dict[str, str]:
        """Returns what the sites' models look like now."""
        return {name: fingerprint(self.net(client)) for client, name in enumerate(self.names)}

    def data(self, client: int) -> LocalData:
        return self._site(client).data

    def check_models(self) -> None:
        """Builds every site, so that what does not fit is refused before a run starts."""
        assert self.infos
        self.own_devices()
        self.federation.check_models()

    def server_context(self) -> ServerContext:
        return replace(self.federation.context(), count_flops=counting, noise_from="seed")

    def slots(self, folder: Path) -> Slots:
        return slots_within(folder, self.settings.run.store_memory, self.groups)

    def folders(self) -> dict[str, str]:
        return {}  # a worker finds the data where the sites' code has them

    def about(self, command: str | None) -> dict[str, Any]:
        known = about(self.federation.settings, command or self.settings.command)
        if account := self.federation.account(self.settings.privacy):
            known["privacy"] = account.table
        if self.public is not None:
            known["public_samples"] = self.public.num
        return {key: value for key, value in known.items() if key != "recipe"}  # it would name the stand-ins for sites

    def advice(self) -> Iterator[str]:
        """Yields what a user should know about this federation before it runs."""
        method = self.settings.method
        yield from method.advice(self.server_context())
        yield from advice_on_rounds(method, self.settings.rounds)
        yield from advice_on_infos(method, self.infos, self.names)
        own = {self.names[client]: self._site(client).site.privacy for client in self.groups}
        for name, privacy in {"": self.settings.privacy, **own}.items():
            if account := self.federation.account(privacy):
                yield f"{name}: {account.in_words}" if name else account.in_words
        for client, name in enumerate(self.names):
            yield from advice_on_data(name, self.data(client))


def _tensors(data: LocalData) -> Tensors:
    parts = {part: held for part, held in data._asdict().items() if len(held)}
    return {f"{part}.{name}": t for part, held in parts.items() for name, t in (*named(held.x).items(), ("y", held.y))}
