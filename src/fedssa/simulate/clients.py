"""Settings and data become clients here: who holds what, and how each one is built."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedssa.accounting.flops import FlopCounter, counting
from fedssa.core.client import AnyAnswer, AnyMethod, Client, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.evaluation import Measures, MetricError
from fedssa.core.groups import layout_id, started
from fedssa.core.method import Method
from fedssa.core.public import Public, public_data
from fedssa.core.rounds import advice_on_counts, advice_on_rounds
from fedssa.core.samples import Form, LocalData, Samples, advice_on_untaught, form_of, untaught
from fedssa.core.seeds import one_thread, seeded
from fedssa.core.split import PROBE_SIZE, SplitModel, first_line, probe_from
from fedssa.core.task import Task
from fedssa.core.tensors import overlapping
from fedssa.data import Dataset, prepare
from fedssa.data.inputs import named
from fedssa.errors import ClientError, DataError, FedSSAError, ModelError, SettingsError
from fedssa.kernels.devices import device_of
from fedssa.methods import METHODS
from fedssa.models import MODELS, Builder
from fedssa.models.alike import picture
from fedssa.partition import LocalSplit
from fedssa.settings.about import about, account_in
from fedssa.settings.imports import given_names
from fedssa.settings.metrics import imported
from fedssa.settings.recipe import PublicSlice, PublicSource, Settings, parse_settings
from fedssa.settings.task import task_of
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.own_models import fingerprints
from fedssa.simulate.owners import Owners

Pick = Callable[[Any], np.intp]  # np.argmax or np.argmin


class SimulatedClients:
    """The clients of a simulation are built when their turn comes, from (seed, client) or for the state they have."""

    def __init__(self, settings: Settings, dataset: Dataset, public: Dataset | None = None) -> None:
        """`public` holds the public data if they are a set of their own."""
        self.owners = Owners(settings, dataset)
        settings = settings.with_clients(len(self.owners))
        self.settings, self.dataset, self._public_dataset = settings, dataset, public
        probe = probe_from(samples_at(dataset, np.arange(min(PROBE_SIZE, len(dataset.y)))))
        self.task = task_of(settings, dataset.num_classes, inputs_of(dataset), probe=probe)
        self.messages = settings.method.messages()
        self._flops = FlopCounter()
        self._measures = Measures(settings.run.per_class, imported(settings.run.metrics))
        self._templates: dict[int, Client | None] = {}
        self._builders: dict[int, Builder] = {}
        self._group_names: dict[int, str] = {}
        self._y = np.asarray(dataset.y)  # this is still a map, but is indexed faster
        self.groups = settings.groups_of(self.owners.names)

    @classmethod
    def prepared(cls, settings: Settings) -> "SimulatedClients":
        """Builds the clients on the data that the settings name."""
        source = settings.public.source if isinstance(settings.public, PublicSource) else None
        return cls(settings, prepare(settings.data), prepare(source) if source is not None else None)

    @classmethod
    def open(cls, setup: Mapping[str, Any]) -> "SimulatedClients":
        """Builds in a worker the same clients as in the process that drives it."""
        public = Dataset.open(Path(setup["public"])) if setup.get("public") else None
        return cls(parse_settings(setup["settings"]), Dataset.open(Path(setup["data"])), public)

    def with_settings(self, settings: Settings) -> "SimulatedClients":
        """Builds clients of other settings on the same data."""
        return SimulatedClients(settings, self.dataset, self._public_dataset)

    def folders(self) -> dict[str, str]:
        """Tells where a worker finds the data."""
        public = {"public": str(self._public_dataset.folder)} if self._public_dataset is not None else {}
        return {"data": str(self.dataset.folder), **public}

    @property
    def about_data(self) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
        return self.dataset.digest, self.dataset.class_names, self.dataset.input_shape

    def about(self, command: str | None) -> dict[str, Any]:
        public = {} if self.public is None else {"public_samples": self.public.num}
        return about(self.settings, command) | public

    @cached_property
    def public(self) -> Public | None:
        public = self.settings.public
        if public is None:
            return None
        if isinstance(public, PublicSlice):
            return public_data(self._samples(self.owners.public), "own", public.per_round)
        assert self._public_dataset is not None
        found = public_from(self._public_dataset, self.dataset, public)
        if self.settings.method.lacks_labels(found.labels):
            name = self.settings.table["method"]["name"]
            raise SettingsError(
                f"method.name = {name!r}: needs public data with the task's own labels, and the classes of [public] "
                "have other names; use a slice"
            )
        return found

    @cached_property
    def infos(self) -> list[ClientInfo]:
        """Lists all clients, on demand: a worker need not split the samples of clients that it never runs."""
        counts = (np.bincount(self._y[split.train]) for split in self.splits)
        return [
            ClientInfo(k, tuple(np.flatnonzero(num).tolist()), int(num.sum()), group=self.group_name(k))
            for k, num in enumerate(counts)
        ]

    def group_name(self, client: int) -> str | None:
        """Returns what a client says of its model in its hello, if the method asks for it."""
        if self.settings.method.groups == "none":
            return None
        group = self.groups[client]
        if group not in self._group_names:
            by_layout = self.settings.method.groups == "layout"
            model = self.settings.archs[group].prototype
            self._group_names[group] = layout_id(self.net(client).extractor) if by_layout else model
        return self._group_names[group]

    def server_context(self) -> ServerContext:
        settings = self.settings
        return ServerContext(
            self.task,
            settings.seed,
            self.public,
            training=settings.server,
            count_flops=counting,
            rule=settings.aggregation,
        )

    @property
    def names(self) -> list[str]:
        return self.owners.names

    @property
    def given_names(self) -> tuple[str, ...]:
        return self.owners.given_names

    @property
    def dealt_digest(self) -> str:
        return self.owners.digest

    @property
    def splits(self) -> Iterator[LocalSplit]:
        return map(self.owners.split, range(len(self.owners)))

    def client(self, client: int, *, counts_flops: bool = True) -> Client:
        settings = self.settings
        with one_thread():  # an initialiser's last bits may depend on the threads
            net, data = self.net(client), self.data(client)
            return Client(
                client,
                net,
                data,
                self.task,
                settings.method,
                settings.archs[self.groups[client]].local,
                settings.seed,
                getattr(settings.data, "augmentations", ()) if self.dataset.kind == "image" else (),
                count_flops=self._flops.of_round if counts_flops else None,
                kernel=settings.run.kernel,
                public=self.public,
                group=self.group_name(client),
                measures=self._measures,
                find_device=partial(device_of, settings.run.device),
                privacy=settings.privacy,
            )

    def called(self, client: int) -> str:
        return f"client {self.names[client]}"

    def returning(self, client: int) -> Client:
        """Builds a client that has a state to load, so that of its start only the structure matters.

        It is a copy of its group's template, which never runs, if all of the group are alike but for their states. A
        user's objects may hold anything, such as a function that counts its calls or a number of the client's own; then
        they are built anew from (seed, client).
        """
        group = self.groups[client]
        if group not in self._templates:
            self._templates[group] = self._template(group)
        template = self._templates[group]
        return self.client(client) if template is None else template.unfilled(client, self.data(client))

    def copies(self, client: int) -> bool:
        return self._templates.get(self.groups[client]) is not None

    def _template(self, group: int) -> Client | None:
        our_inits = {Method.client_init, *(ours.client_init for ours in METHODS.values())}
        if type(self.settings.method).client_init not in our_inits:
            return None
        template = self.client(self.groups.index(group))
        return template if self._is_ours(group) or self._is_like_others(group, template) else None

    def _is_ours(self, group: int) -> bool:
        shared_is_ours = self.settings.shared[0] in MODELS or not self.settings.method.needs_shared_model
        return self.settings.archs[group].is_ours and shared_is_ours

    def _is_like_others(self, group: int, template: Client) -> bool:
        """Looks at a model of other random numbers: what its Python objects hold must not depend on them."""
        with one_thread(), seeded(self.settings.seed, "start"):
            other = self._builder(group)()
        if template.net.channels_last:
            other = other.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        found = picture(template.net)
        return found is not None and found == picture(other) and picture(*template.modules()) is not None

    def net(self, client: int) -> SplitModel:
        settings = self.settings
        build_one = self._builder(self.groups[client])
        return started(build_one, settings.seed, client, common=settings.method.groups == "layout")

    def _builder(self, group: int) -> Builder:
        if group not in self._builders:
            self._builders[group] = builder_of(self.settings, group, self.task)
        return self._builders[group]

    def fingerprints(self) -> dict[str, str]:
        """Returns what the user's own models look like now."""
        builders = map(self._builder, sorted(set(self.groups)))
        return fingerprints(self.settings, self.task, {builder.name: builder for builder in builders})

    @cached_property
    def hostile(self) -> tuple[int, ...]:
        attack = self.settings.hostile
        return () if attack is None else attack.who(len(self.owners), self.settings.seed)

    def sent(self, answer: AnyAnswer, t: int) -> AnyAnswer:
        attack = self.settings.hostile
        is_hostile = attack is not None and answer.client in self.hostile
        return attack.uploaded(answer, self.settings.seed, t) if attack is not None and is_hostile else answer

    def data(self, client: int) -> LocalData:
        split, attack = self.owners.split(client), self.settings.hostile
        train = self._samples(split.train)
        if attack is not None and client in self.hostile:
            train = attack.taught(train)
        return LocalData(train, self._samples(split.val), self._samples(split.test))

    def own_devices(self) -> dict[str, str]:
        return {}  # all clients are on run.device

    def slots(self, folder: Path) -> Slots:
        return slots_within(folder, self.settings.run.store_memory, self.groups)

    def check_models(self) -> None:
        """Builds one client of each architecture, so that what does not fit is refused before a run starts."""
        for group in sorted(set(self.groups)):
            arch, first = self.settings.archs[group].label, self.groups.index(group)
            try:
                client = self.client(first)
                if self._measures.metrics:
                    client.hello(evaluate_start=True)  # so that a metric which cannot be computed is refused now
            except MetricError as error:
                raise SettingsError(f"run.metrics: {self.called(first)}: {error}") from error
            except FedSSAError:
                raise
            except Exception as error:  # a user's method may raise anything
                raise ClientError(f"{self.called(first)}: {type(error).__name__}: {error}") from error
            if shared := overlapping(client.state().items()):
                raise ModelError(f"{arch}: '{shared[0]}' and '{shared[1]}' share memory; untie them")
            self._check_ids(group, arch)
            self._check_smallest_batch(group, arch)

    def _check_ids(self, group: int, arch: str) -> None:
        """Refuses a model whose vocabulary lacks a whole number that one of its clients has."""
        for name, array in named(self.dataset.x):
            if array.dtype == np.int64:
                for pick in (np.argmax, np.argmin):
                    self._check_sample(arch, name, *self._extreme(group, array, pick))

    def _extreme(self, group: int, array: np.ndarray, pick: Pick) -> tuple[int, int]:
        """Finds the client of a group that has the largest or smallest whole number, and the sample that holds it."""
        found = {}
        for k in (k for k, its in enumerate(self.groups) if its == group):
            indices = self.owners.held(k)
            held = array[indices].reshape(len(indices), -1)
            place = int(pick(held)) // held.shape[1]
            found[k] = held[place].flat[pick(held[place])], int(indices[place])
        client = list(found)[int(pick([value for value, _ in found.values()]))]
        return client, found[client][1]

    def _check_sample(self, arch: str, name: str, client: int, sample: int) -> None:
        net, samples = self.net(client), self._samples(np.array([sample]))
        try:
            with torch.no_grad():
                net.eval()(samples.batch(torch.arange(1), channels_last=net.channels_last))
        except Exception as error:  # a user's model may raise anything
            held = dict(named(self.dataset.x))[name][sample]
            raise ModelError(
                f"{arch}: does not run on a sample of client {self.names[client]} whose {name} has numbers from "
                f"{held.min()} to {held.max()} ({first_line(error)}); give the model a larger vocabulary, or "
                "other numbers to the data"
            ) from error

    def _check_smallest_batch(self, group: int, arch: str) -> None:
        """Refuses a model that fails on one sample, as batch normalisation does, if an epoch ends with such a batch."""
        size = self.settings.archs[group].local.batch_size
        sizes = [info.num_train % size or size for info in self.infos if self.groups[info.id] == group]
        if min(sizes) > 1:
            return
        first = self.groups.index(group)
        net, samples = self.net(first), self.data(first).train
        try:
            with torch.no_grad(), seeded(0, "training"):
                net.train()(samples.batch(torch.arange(1), channels_last=net.channels_last))
        except Exception as error:  # a user's model may raise anything
            client = next(i.id for i in self.infos if self.groups[i.id] == group and (i.num_train % size or size) == 1)
            raise ModelError(
                f"{arch}: cannot train on a batch of one, which the last of client {self.names[client]} is "
                f"({self.infos[client].num_train} samples in batches of {size}); change local.batch_size"
            ) from error

    def advice(self) -> Iterator[str]:
        """Yields what a user should know about this federation before it runs."""
        settings, method = self.settings, self.settings.method
        if names := given_names(self.settings.table):
            yield (
                f"{', '.join(names)}: only this program has it, so only fedssa.run with it and exist_ok=True can "
                "continue this run; what an import path leads to is found from anywhere"
            )
        yield from method.advice(self.server_context())
        yield from advice_on_rounds(method, settings.rounds)
        if account := account_in(settings):
            yield account.in_words
        if self.settings.local.precision == "bf16":
            yield 'local.precision = "bf16" is slower than float32 on most CPUs'
        if self.dataset.parts is not None:
            yield from _first_few(self.advice_on_data())
        yield from advice_on_infos(method, self.infos, self.names)
        if method.needs_shared_model and "shared models" in method.travels:
            shared = self.task.shared_start(self.settings.seed, method.shared_width(self.task.width))
            size, firsts = _num_weights(shared), {group: self.groups.index(group) for group in sorted(set(self.groups))}
            larger = [settings.archs[group].label for group, k in firsts.items() if _num_weights(self.net(k)) < size]
            if larger:
                yield (
                    f"models.shared = {self.settings.shared[0]!r} is larger than the clients' own {', '.join(larger)}; "
                    "a smaller one is cheaper to train and to send"
                )

    def advice_on_data(self) -> Iterator[str]:
        """Yields who is tested on classes that it does not train on, which published parts may bring about."""
        for name, split in zip(self.names, self.splits, strict=True):
            if missing := untaught(self._y[split.train].tolist(), self._y[split.test].tolist()):
                yield advice_on_untaught(f"client {name}", missing, len(split.test), self.dataset.class_names)

    def _samples(self, indices: np.ndarray) -> Samples:
        return samples_at(self.dataset, indices)


def samples_at(dataset: Dataset, indices: np.ndarray) -> Samples:
    """Copies samples from a data set."""

    def copied(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(array)[indices])  # it is still a map, but is indexed faster

    x = dataset.x
    taken = {name: copied(array) for name, array in x.items()} if isinstance(x, dict) else copied(x)
    return Samples(taken, copied(dataset.y))


def inputs_of(dataset: Dataset) -> Form:
    return form_of(samples_at(dataset, np.arange(0)).x)


def advice_on_infos(method: AnyMethod, infos: Sequence[ClientInfo], names: Sequence[str]) -> Iterator[str]:
    """Yields what follows from what the clients say of themselves."""
    if method.groups == "layout":
        yield from _advice_on_groups(infos, names)
    owners = Counter(s for info in infos for s in info.seen_classes)
    if method.shares_by_class and max(owners.values()) == 1:
        yield "no class is held by two clients, so there is nothing to share; see: fedssa partition"
    if advice := advice_on_counts(infos, names):
        yield advice


def _advice_on_groups(infos: Sequence[ClientInfo], names: Sequence[str]) -> Iterator[str]:
    members = Counter(info.group for info in infos)
    alone = [names[info.id] for info in infos if members[info.group] == 1]
    if len(alone) == len(infos) > 1:
        yield "no two clients have the same architecture, so no extractor is shared; see models.archs"
    elif alone and len(infos) > 1:
        listed = ", ".join(alone[:5]) + (", …" if len(alone) > 5 else "")
        yield f"nobody shares an extractor with client {listed}: no other has its architecture; see models.archs"


def slots_within(folder: Path, memory: float | None, groups: Sequence[int]) -> Slots:
    """Opens the clients' states; each group's file gets an equal share of the memory (GB) that states may take."""
    return Slots(folder) if memory is None else Slots(folder, 1e9 * memory / len(set(groups)))


def public_from(dataset: Dataset, task_data: Dataset, said: PublicSource) -> Public:
    """Takes a data set of its own as public data; its inputs must have the task's shape and type."""
    theirs, ours = (_described(d) for d in (dataset, task_data))
    if theirs != ours:
        raise DataError(f"[public]: its inputs are {theirs}, those of [data] are {ours}")
    if dataset.digest == task_data.digest:
        raise DataError(
            '[public]: are the data of [data], which clients hold; set some aside with public.name = "slice"'
        )
    num = len(dataset.y) if said.size is None else said.size
    if num > len(dataset.y):
        raise DataError(f"public.size = {num}: there are only {len(dataset.y)} samples")
    samples = samples_at(dataset, np.arange(num))
    return public_data(samples, "own" if dataset.class_names == task_data.class_names else "foreign", said.per_round)


def _described(dataset: Dataset) -> str:
    """Says the type in which inputs are stored, too, since bytes and floats would be batches of different values."""
    form = inputs_of(dataset)
    if isinstance(dataset.x, dict) and isinstance(form, dict):
        return ", ".join(f"{name} {array.dtype} {form[name].shape}" for name, array in sorted(dataset.x.items()))
    return f"{dataset.x.dtype} {dataset.input_shape}"


def _first_few(lines: Iterator[str], most: int = 3) -> Iterator[str]:
    told = list(lines)
    yield from told[:most]
    if len(told) > most:
        yield f"the same is true of {len(told) - most} more clients; see: fedssa partition"


def _num_weights(net: SplitModel) -> int:
    return sum(p.numel() for p in net.parameters())


def builder_of(settings: Settings, group: int, task: Task) -> Builder:
    arch = settings.archs[group]
    return Builder(arch.model, arch.factory, task)
