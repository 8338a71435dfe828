"""Settings and data → clients: who holds what, and how each one is built."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedssa.accounting.flops import FlopCounter
from fedssa.config import Settings, parse_settings
from fedssa.core.client import Client, ClientInfo
from fedssa.core.method import Method
from fedssa.core.seeds import numpy_rng, one_thread, seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import LocalData, Samples, as_input
from fedssa.data import Dataset, prepare
from fedssa.errors import ClientError, DataError, FedSSAError, ModelError
from fedssa.methods import METHODS
from fedssa.models import MODELS, build
from fedssa.partition import LocalSplit, split_by_class
from fedssa.record import RunDir
from fedssa.simulate.slots import Slots


class SimulatedClients:
    """The clients of a simulation; each is made when it is its turn, from (seed, client) or for the state it has."""

    def __init__(self, settings: Settings, dataset: Dataset) -> None:
        self.settings, self.dataset = settings, dataset
        self.task = task_of(settings, dataset.num_classes, dataset.input_shape)
        self._flops = FlopCounter()
        self._templates: dict[int, Client] = {}
        self._x, self._y = np.asarray(dataset.x), np.asarray(dataset.y)  # still maps, but indexed faster
        self._dealt = settings.partition.deal(self._y, dataset.num_classes, numpy_rng(settings.seed, "partition"))
        self.groups = [k % len(settings.models.archs) for k in range(len(self._dealt))]

    @classmethod
    def open(cls, table: Mapping[str, Any], data: Path) -> "SimulatedClients":
        """In a worker: the same clients as in the process that drives it."""
        return cls(parse_settings(table), Dataset.open(data))

    @cached_property
    def infos(self) -> list[ClientInfo]:
        """Made when asked for: a worker need not split the samples of clients that are never its own."""
        counts = (np.bincount(self._y[split.train]) for split in self.splits)
        return [ClientInfo(k, tuple(np.flatnonzero(num).tolist()), int(num.sum())) for k, num in enumerate(counts)]

    @property
    def splits(self) -> Iterator[LocalSplit]:
        return map(self._split, range(len(self._dealt)))

    def _split(self, client: int) -> LocalSplit:
        rng = numpy_rng(self.settings.seed, "split", client=client)
        return split_by_class(self._dealt[client], self._y, rng, client=client)

    def client(self, client: int) -> Client:
        settings = self.settings
        with one_thread():  # an initialiser's last bits may depend on the threads
            net, data = self.net(client), self.data(client)
            return Client(
                client,
                net,
                data,
                self.task,
                settings.method,
                settings.local,
                settings.seed,
                getattr(settings.data, "augmentations", ()),
                self._flops.of_round,
                settings.run.kernel,
            )

    def returning(self, client: int) -> Client:
        """A client that has a state to load, so that of its start only the structure matters.

        Of our own architectures and methods it is copied from a template of its group that never runs; a user's
        objects may hold anything, a function that counts its calls, say, so they are built anew from (seed, client).
        """
        group = self.groups[client]
        if not self._is_ours(group):
            return self.client(client)
        if group not in self._templates:
            self._templates[group] = self.client(group)
        return self._templates[group].unfilled(client, self.data(client))

    def _is_ours(self, group: int) -> bool:
        method = self.settings.method
        shared = [self.settings.shared[0]] if method.needs_shared_model else []
        our_inits = {Method.client_init, *(ours.client_init for ours in METHODS.values())}
        return {self.settings.models.archs[group], *shared} <= MODELS.keys() and type(method).client_init in our_inits

    def net(self, client: int) -> SplitModel:
        with seeded(self.settings.seed, "start", client=client):
            return build_net(self.settings, client, self.task)

    def data(self, client: int) -> LocalData:
        split = self._split(client)
        return LocalData(self._samples(split.train), self._samples(split.val), self._samples(split.test))

    def slots(self, folder: Path) -> Slots:
        """Their states; each group's file has its share of the memory that states may take."""
        budget = self.settings.run.store_memory
        return Slots(folder) if budget is None else Slots(folder, 1e9 * budget / len(set(self.groups)))

    def check_models(self) -> None:
        """Build one client of each architecture: what does not fit is refused before a run starts."""
        for group, arch in enumerate(self.settings.models.archs[: len(self.groups)]):
            try:
                client = self.client(group)
            except FedSSAError:
                raise
            except Exception as error:  # a user's method may raise anything
                raise ClientError(f"client {group}: {type(error).__name__}: {error}") from error
            tensors = [t for t in client.state().values() if t.numel()]
            if len({t.data_ptr() for t in tensors}) < len(tensors):
                raise ModelError(f"{arch}: two of its tensors share memory; untie them")
            self._check_smallest_batch(group, arch)

    def _check_smallest_batch(self, group: int, arch: str) -> None:
        """The last batch of an epoch may be of one sample, which batch normalisation cannot train on."""
        size = self.settings.local.batch_size
        sizes = [info.num_train % size or size for info in self.infos if self.groups[info.id] == group]
        if min(sizes) > 1:
            return
        net, samples = self.net(group), self.data(group).train
        try:
            with torch.no_grad(), seeded(0, "training"):
                net.train()(as_input(samples.x[:1], channels_last=net.channels_last))
        except Exception as error:  # a user's model may raise anything
            client = next(i.id for i in self.infos if self.groups[i.id] == group and (i.num_train % size or size) == 1)
            raise ModelError(
                f"{arch}: cannot train on a batch of one, which the last of client {client} is "
                f"({self.infos[client].num_train} samples in batches of {size}); change local.batch_size"
            ) from error

    def warnings(self) -> Iterator[str]:
        """What a user should know about this federation before it runs."""
        method = self.settings.method
        owners = Counter(s for info in self.infos for s in info.seen_classes)
        if type(method).uplink is not Method.uplink and max(owners.values()) == 1:
            yield "no class is held by two clients, so there is nothing to share; see: fedssa partition"
        if method.needs_shared_model:
            size, archs = _num_weights(self.task.shared_start(self.settings.seed)), self.settings.models.archs
            larger = [archs[group] for group in sorted(set(self.groups)) if _num_weights(self.net(group)) < size]
            if larger:
                yield (
                    f"models.shared = {self.settings.shared[0]!r} is larger than the clients' own {', '.join(larger)}; "
                    "a smaller one is cheaper to train and to send"
                )

    def _samples(self, indices: np.ndarray) -> Samples:
        return Samples(torch.from_numpy(self._x[indices]), torch.from_numpy(self._y[indices]))


def clients_of(run_dir: RunDir, settings: Settings) -> SimulatedClients:
    """The clients of a run that was begun. Other data are refused: they would be dealt anew."""
    dataset = prepare(settings.data)
    theirs = (run_dir.data_digest, run_dir.class_names, run_dir.input_shape)
    if theirs != (dataset.digest, dataset.class_names, dataset.input_shape):
        digests = f"digest {run_dir.data_digest[:12]}, now {dataset.digest[:12]}"
        raise DataError(
            f"{run_dir.path}: begun with other data or class names ({digests}); restore those it began with"
        )
    return SimulatedClients(settings, dataset)


def _num_weights(net: SplitModel) -> int:
    return sum(p.numel() for p in net.parameters())


def task_of(settings: Settings, num_classes: int, input_shape: tuple[int, ...]) -> Task:
    plain = Task(num_classes, input_shape, settings.models.width, settings.rounds.total)
    return replace(plain, build_shared=partial(build, *settings.shared, plain))


def build_net(settings: Settings, client: int, task: Task) -> SplitModel:
    """A model of the client's architecture: archs[k mod len(archs)]."""
    group = client % len(settings.models.archs)
    return build(settings.models.archs[group], settings.factories[group], task)
