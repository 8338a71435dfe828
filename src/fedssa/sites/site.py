"""A site is somebody's model and data. No sample leaves it, and of the model only what the method sends.

    # my_site.py
    from fedssa import Site

    def site(task):                                    # or without an argument, or a Site as it is
        return Site(model=my_model(), train=my_train, val=my_val, test=my_test)

It is named by a file (`my_site.py`, `my_site.py:other`) or by an import path (`my_package.sites:site`).
"""

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from fedssa.core.client import Client, CountFlops
from fedssa.core.evaluation import Measures
from fedssa.core.groups import layout_id
from fedssa.core.noise import NoiseFrom
from fedssa.core.privacy import Privacy
from fedssa.core.samples import LocalData, advice_on_untaught, in_words, untaught
from fedssa.core.seeds import one_thread, seeded
from fedssa.core.split import SplitModel, probe_from
from fedssa.core.task import Task
from fedssa.core.tensors import copy_in, layout_of, module_state, overlapping
from fedssa.errors import DataError, ModelError, SettingsError
from fedssa.kernels.devices import device_of, refuse_unknown
from fedssa.models import build
from fedssa.settings.metrics import imported
from fedssa.sites.agreement import Federation
from fedssa.sites.find import find, naming
from fedssa.sites.privacy import privacy_of, refuse_senseless, sharing_of
from fedssa.sites.samples import samples

AUGMENTATIONS = ("crop", "flip", "erase")


@dataclass(frozen=True, kw_only=True)
class Site:
    """`train`, `val` and `test` yield pairs (x, y), or are each a pair of arrays or tensors (all x, all y).

    x has the shape and type that the task says (task.inputs), or is a dict of such by name; y is a whole number from 0.
    An image is [C, H, W] or [H, W, C] in floats or bytes, which become [-1, 1]. Nothing else is converted.
    """

    model: nn.Module | Callable[[Task], nn.Module]
    train: Any
    test: Any
    val: Any = ()
    name: str | None = None  # which client it is; None: whoever runs it says
    prototype: str | None = None  # which of models.prototypes its model is, if the method asks for it
    augmentations: Collection[str] = ()  # what may be done to images in training: "crop", "flip", "erase"
    per_class: bool = False  # whether the server is told how many test samples of each class its model tells right
    privacy: Privacy | None = None  # of its uploads; None: what federation.toml says, by default none
    share_accuracy: bool = True  # whether the server is told accuracies, own metrics, loss and norm of header rows
    share_counts: bool = True  # whether the server is told numbers of samples and steps; else all sites count alike
    digits: int | None = None  # to so many digits, all these are rounded; None: they are not
    device: str | None = None  # what it computes on, as run.device; None: what federation.toml says, by default the CPU


@dataclass(frozen=True)
class Loaded:
    """This is what a site's code has returned. Clients can be built of it any number of times, all with one start."""

    called: str
    site: Site
    common: Site | None  # the same on the stream that all sites share, if sites of one layout begin alike
    data: LocalData

    def refuse_other_than(self, client: str) -> None:
        if self.site.name not in (None, client):
            raise SettingsError(f"{self.called}: says that it is {self.site.name!r}, and is to be client {client!r}")


def client_of(reference: str, federation: Federation, client: int) -> Client:
    """Builds the site as a client at its start, which is a function of (seed, client) and of the site's own code."""
    has = loaded(reference, federation, client, reference)
    has.refuse_other_than(federation.clients[client])
    return client_from(has, federation, client)


def loaded(reference: str, federation: Federation, client: int, called: str) -> Loaded:
    """Runs the site's code and reads its data; `called` is how errors name it."""
    task, seed = federation.task, federation.settings.seed
    with naming(called), one_thread():
        site = _on_stream(reference, task, seed, client)
        _check_augmentations(site, task)
        refuse_senseless(site, federation)
        if site.device is not None:
            refuse_unknown(site.device, "device")
        data = LocalData(*(samples(part, getattr(site, part), task) for part in ("train", "val", "test")))
        _check_sizes(data)
        by_layout = federation.settings.method.groups == "layout"
        return Loaded(called, site, _on_stream(reference, task, seed, -1) if by_layout else None, data)


def client_from(
    has: Loaded,
    federation: Federation,
    client: int,
    count_flops: CountFlops | None = None,
    noise_from: NoiseFrom = "system",
) -> Client:
    settings, public, privacy = federation.settings, federation.public, privacy_of(has.site, federation)
    with naming(has.called), one_thread():
        net = _started(has.site, has.data, federation, client)
        made = Client(
            client,
            net,
            has.data,
            federation.task,
            settings.method,
            settings.local,
            settings.seed,
            tuple(has.site.augmentations),
            count_flops,
            kernel=settings.run.kernel,
            public=public,
            group=_group(has, net, federation),
            measures=Measures(has.site.per_class, imported(settings.run.metrics)),
            noise_from=noise_from,
            find_device=_find_device(has, settings.run.device),
            privacy=privacy,
            sharing=sharing_of(has.site, privacy, noise_from),
        )
        if shared := overlapping(made.state().items()):
            raise ModelError(f"'{shared[0]}' and '{shared[1]}' share memory; untie them")
    return made


def _find_device(has: Loaded, usual: str) -> Callable[[], torch.device]:
    own = has.site.device
    return partial(device_of, usual) if own is None else partial(device_of, own, f"{has.called}: device")


def _group(has: Loaded, net: SplitModel, federation: Federation) -> str | None:
    """Returns what the site says of its model, if the method asks, and gives sites of one layout the same extractor."""
    task, prototype = federation.task, has.site.prototype
    if has.common is not None:
        common = _started(has.common, has.data, federation, -1)
        copy_in(module_state(common.extractor), module_state(net.extractor))
        return layout_id(net.extractor)
    if federation.settings.method.groups == "none":
        return None
    if prototype is None or prototype not in task.prototypes:
        raise SettingsError(f"prototype = {prototype!r}: should be one of {', '.join(task.prototypes)}")
    if layout_of(module_state(net)) != task.prototype_layouts[prototype]:
        raise ModelError(f"its model is no {prototype}, as it says it is")
    return prototype


def _on_stream(reference: str, task: Task, seed: int, client: int) -> Site:
    """Runs the site's code on the random stream of a client's start: where it stands outside of functions, …"""
    with seeded(seed, "start", client=client):
        found = find(reference)
    with seeded(seed, "start", client=client):  # … then in its function, whether the file is run or was imported before
        return as_site(found, task)


def _started(site: Site, data: LocalData, federation: Federation, client: int) -> SplitModel:
    """… and at last in its model's function, if it has one; each begins anew, so it does not matter which builds."""
    with seeded(federation.settings.seed, "start", client=client):
        return _net_of(site, replace(federation.task, probe=probe_from(data.train)))


def load_net(reference: str, task: Task) -> SplitModel:
    """Returns the site's model, split, with weights that mean nothing yet."""
    with naming(reference):
        return _net_of(as_site(find(reference), task), task)


def as_site(found: Any, task: Task) -> Site:
    if callable(found) and not isinstance(found, Site):
        found = found(task) if inspect.signature(found).parameters else found()
    if not isinstance(found, Site):
        raise SettingsError(f"is a {type(found).__name__}; it should be a Site or a function that returns one")
    return found


def _net_of(site: Site, task: Task) -> SplitModel:
    model = site.model
    return build("its model", (lambda _: model) if isinstance(model, nn.Module) else model, task)


def _check_augmentations(site: Site, task: Task) -> None:
    """Refuses unknown augmentations: a misspelt one, or a single string's letters, would silently do nothing."""
    for name in site.augmentations:
        if name not in AUGMENTATIONS:
            raise SettingsError(
                f"augmentations: {name!r} is unknown; give a list of some of {', '.join(AUGMENTATIONS)}"
            )
    if site.augmentations and not task.has_images:
        raise SettingsError(
            f"augmentations: the task's input is {in_words(task.inputs)}, which is no image; leave them out"
        )


def _check_sizes(data: LocalData) -> None:
    for part in ("train", "test"):
        if not len(getattr(data, part)):
            raise DataError(f"{part}: is empty; a site needs samples to train on and samples to be tested on")


def advice_on_data(called: str, data: LocalData) -> Iterator[str]:
    """Yields what a site's owner should know of its data, though the site can take part."""
    if missing := untaught(data.train.y.tolist(), data.test.y.tolist()):
        yield advice_on_untaught(called, missing, len(data.test))
