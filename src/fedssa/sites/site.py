"""A site is somebody's model and data. No sample leaves it, and of the model only what the method sends.

    # my_site.py
    from fedssa import Site

    def site(task):                                    # or without an argument, or a Site as it is
        return Site(model=my_model(), train=my_train, val=my_val, test=my_test)

It is named by a file (`my_site.py`, `my_site.py:other`) or by an import path (`my_package.sites:site`).
"""

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedssa.core.client import Client, CountFlops
from fedssa.core.groups import layout_id
from fedssa.core.samples import LocalData, Samples, advice_on_untaught, untaught
from fedssa.core.seeds import one_thread, seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import copy_in, layout_of, module_state
from fedssa.data.arrays import TYPES
from fedssa.errors import DataError, FedSSAError, ModelError, SettingsError
from fedssa.models import build
from fedssa.sites.agreement import Federation
from fedssa.sites.find import find, naming

AUGMENTATIONS = ("crop", "flip", "erase")


@dataclass(frozen=True, kw_only=True)
class Site:
    """`train`, `val` and `test` yield pairs (x, y), or are each a pair of arrays or tensors (all x, all y).

    x is an image [C, H, W] or [H, W, C] in bytes or floats, or a vector; y is a whole number from 0. Bytes become
    [-1, 1]; floats are taken as they are, and other numbers are refused.
    """

    model: nn.Module | Callable[[Task], nn.Module]
    train: Any
    test: Any
    val: Any = ()
    name: str | None = None  # which client it is; None: whoever runs it says
    prototype: str | None = None  # which of models.prototypes its model is, if the method asks for it
    augmentations: Collection[str] = ()  # what may be done to images in training: "crop", "flip", "erase"


Source = str | Site | Callable[..., Site]  # a reference to a site, or the site itself


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


def client_of(source: Source, federation: Federation, client: int) -> Client:
    """Builds the site as a client at its start, which is a function of (seed, client) and of the site's own code."""
    has = loaded(source, federation, client, source if isinstance(source, str) else federation.clients[client])
    has.refuse_other_than(federation.clients[client])
    return client_from(has, federation, client)


def loaded(source: Source, federation: Federation, client: int, called: str) -> Loaded:
    """Runs the site's code and reads its data; `called` is how errors name it."""
    task, seed = federation.task, federation.settings.seed
    with naming(called), one_thread():
        site = _on_stream(source, task, seed, client)
        _check_augmentations(site)
        data = LocalData(*(samples(part, getattr(site, part), task) for part in ("train", "val", "test")))
        _check_sizes(data)
        by_layout = federation.settings.method.groups == "layout"
        return Loaded(called, site, _on_stream(source, task, seed, -1) if by_layout else None, data)


def client_from(has: Loaded, federation: Federation, client: int, count_flops: CountFlops | None = None) -> Client:
    settings, public = federation.settings, federation.public
    with naming(has.called), one_thread():
        net = _started(has.site, federation, client)
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
        )
        tensors = [tensor for tensor in made.state().values() if tensor.numel()]
        if len({tensor.data_ptr() for tensor in tensors}) < len(tensors):
            raise ModelError("two tensors of its model share memory; untie them")
    return made


def _group(has: Loaded, net: SplitModel, federation: Federation) -> str | None:
    """Returns what the site says of its model, if the method asks, and gives sites of one layout the same extractor."""
    task, prototype = federation.task, has.site.prototype
    if has.common is not None:
        common = _started(has.common, federation, -1)
        copy_in(module_state(common.extractor), module_state(net.extractor))
        return layout_id(net.extractor)
    if federation.settings.method.groups == "none":
        return None
    if prototype is None or prototype not in task.prototypes:
        raise SettingsError(f"prototype = {prototype!r}: should be one of {', '.join(task.prototypes)}")
    if layout_of(module_state(net)) != task.prototype_layouts[prototype]:
        raise ModelError(f"its model is no {prototype}, as it says it is")
    return prototype


def _on_stream(source: Source, task: Task, seed: int, client: int) -> Site:
    """Runs the site's code on the random stream of a client's start, for it may build its model at once …"""
    with seeded(seed, "start", client=client):
        return load_site(source, task)


def _started(site: Site, federation: Federation, client: int) -> SplitModel:
    """… or later, in a function, which begins on the same stream."""
    with seeded(federation.settings.seed, "start", client=client):
        return _net_of(site, federation.task)


def load_net(reference: str, task: Task) -> SplitModel:
    """Returns the site's model, split, with weights that mean nothing yet."""
    with naming(reference):
        return _net_of(load_site(reference, task), task)


def load_site(source: Source, task: Task) -> Site:
    found = find(source) if isinstance(source, str) else source
    if callable(found) and not isinstance(found, Site):
        found = found(task) if inspect.signature(found).parameters else found()
    if not isinstance(found, Site):
        raise SettingsError(f"is a {type(found).__name__}; it should be a Site or a function that returns one")
    return found


def _net_of(site: Site, task: Task) -> SplitModel:
    model = site.model
    return build("its model", (lambda _: model) if isinstance(model, nn.Module) else model, task)


def samples(part: str, data: Any, task: Task) -> Samples:
    """Reads all samples of a part into memory, as a client trains on them."""
    try:
        x, y = _columns(data, task)
        labels = torch.as_tensor(np.asarray(y)).reshape(-1)
        inputs = torch.as_tensor(np.asarray(x))
    except FedSSAError:
        raise
    except Exception as error:  # a site's own data set may raise anything
        raise DataError(f"{part}: cannot be read ({type(error).__name__}: {error})") from error
    if len(labels) != len(inputs):
        raise DataError(f"{part}: {len(inputs)} samples and {len(labels)} labels")
    _check_labels(part, labels, task)
    return Samples(_as_stored(part, inputs, task).clone(memory_format=torch.contiguous_format), labels.long().clone())


def _check_labels(part: str, labels: Tensor, task: Task) -> None:
    wanted = f"the task's are whole numbers from 0 to {task.num_classes - 1}"
    if labels.is_floating_point() and not torch.equal(labels, labels.round()):
        raise DataError(f"{part}: has labels that are not whole, {wanted}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < task.num_classes:
        raise DataError(f"{part}: has labels from {int(labels.min())} to {int(labels.max())}, {wanted}")


def _columns(data: Any, task: Task) -> tuple[Any, Any]:
    """Returns a pair of columns as it is, and makes columns of anything else that yields pairs."""
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(c, (Tensor, np.ndarray)) for c in data):
        return data[0], data[1]
    found = (data[i] for i in range(len(data))) if _is_indexed(data) else data
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in found]
    if not pairs:
        return np.zeros((0, *task.input_shape), dtype=np.float32), np.zeros(0, dtype=np.int64)
    return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])


def _is_indexed(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _as_stored(part: str, x: Tensor, task: Task) -> Tensor:
    """Returns bytes or float32, images as [n, H, W, C], of which each batch makes what a model takes."""
    if x.dtype != torch.uint8:
        if not x.is_floating_point():
            raise DataError(f"{part}: its samples are {str(x.dtype).removeprefix('torch.')}; {TYPES}")
        x = x.float()
        if not x.isfinite().all():
            raise DataError(f"{part}: holds NaN or infinity; all values must be finite in float32")
    shape, wanted = tuple(x.shape[1:]), task.input_shape
    if len(wanted) == 3:
        channels, height, width = wanted
        if shape == wanted:
            return x.permute(0, 2, 3, 1)
        if shape == (height, width) and channels == 1:
            return x[..., None]
        wanted = (height, width, channels)
    if shape != wanted:
        raise DataError(f"{part}: its samples are {_times(shape)}, the task's are {_times(task.input_shape)}")
    return x


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "single numbers"


def _check_augmentations(site: Site) -> None:
    """Refuses unknown augmentations: a misspelt one, or a single string's letters, would silently do nothing."""
    for name in site.augmentations:
        if name not in AUGMENTATIONS:
            raise SettingsError(
                f"augmentations: {name!r} is unknown; give a list of some of {', '.join(AUGMENTATIONS)}"
            )


def _check_sizes(data: LocalData) -> None:
    for part in ("train", "test"):
        if not len(getattr(data, part)):
            raise DataError(f"{part}: is empty; a site needs samples to train on and samples to be tested on")


def advice_on_data(called: str, data: LocalData) -> Iterator[str]:
    """Yields what a site's owner should know of its data, though the site can take part."""
    if missing := untaught(data.train.y.tolist(), data.test.y.tolist()):
        yield advice_on_untaught(called, missing, len(data.test))
