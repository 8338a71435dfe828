"""A site is somebody's model and data. No sample leaves it, and of the model only what the method sends.

    # my_site.py
    from fedssa import Site

    def site(task):                                    # or without an argument, or a Site as it is
        return Site(model=my_model(), train=my_train, val=my_val, test=my_test)

It is named by a file (`my_site.py`, `my_site.py:other`) or by an import path (`my_package.sites:site`).
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedssa.core.client import Client
from fedssa.core.evaluation import Measures
from fedssa.core.groups import layout_id
from fedssa.core.samples import LocalData, Samples
from fedssa.core.seeds import one_thread, seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import copy_in, layout_of, module_state
from fedssa.data.arrays import TYPES
from fedssa.errors import ClientError, DataError, FedSSAError, ModelError, SettingsError
from fedssa.models import build
from fedssa.settings.imports import import_path
from fedssa.settings.metrics import imported
from fedssa.sites.agreement import Federation

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
    prototype: str | None = None  # which of models.prototypes its model is, if the method asks for it
    augmentations: Collection[str] = ()  # what may be done to images in training: "crop", "flip", "erase"
    per_class: bool = False  # whether the server is told how many test samples of each class its model tells right


def client_of(reference: str, federation: Federation, client: int) -> Client:
    """Builds the site as a client at its start, which is a function of (seed, client) and of the site's own code."""
    task, settings = federation.task, federation.settings
    with one_thread():
        site, net = _started(reference, task, settings.seed, client)
        data = LocalData(*(samples(part, getattr(site, part), task) for part in ("train", "val", "test")))
        _check_sizes(data)
        _check_augmentations(site)
        group = _group(reference, site, net, federation)
        made = Client(
            client,
            net,
            data,
            task,
            settings.method,
            settings.local,
            settings.seed,
            tuple(site.augmentations),
            kernel=settings.run.kernel,
            public=federation.public,
            group=group,
            measures=Measures(site.per_class, imported(settings.run.metrics)),
        )
    tensors = [tensor for tensor in made.state().values() if tensor.numel()]
    if len({tensor.data_ptr() for tensor in tensors}) < len(tensors):
        raise ModelError(f"{reference}: two tensors of its model share memory; untie them")
    return made


def _group(reference: str, site: Site, net: SplitModel, federation: Federation) -> str | None:
    """Returns what the site says of its model, if the method asks, and gives sites of one layout the same extractor."""
    task, settings = federation.task, federation.settings
    if settings.method.groups == "layout":
        _, common = _started(reference, task, settings.seed, -1)
        copy_in(module_state(common.extractor), module_state(net.extractor))
        return layout_id(net.extractor)
    if settings.method.groups == "none":
        return None
    if site.prototype is None or site.prototype not in task.prototypes:
        known = ", ".join(task.prototypes)
        raise SettingsError(f"{reference}: prototype = {site.prototype!r}: should be one of {known}")
    if layout_of(module_state(net)) != task.prototype_layouts[site.prototype]:
        raise ModelError(f"{reference}: its model is no {site.prototype}, as it says it is")
    return site.prototype


def _started(reference: str, task: Task, seed: int, client: int) -> tuple[Site, SplitModel]:
    """Runs the site's code on the random stream of a client's start, whether it builds its model early or late."""
    with seeded(seed, "start", client=client):
        site = load_site(reference, task)
    with seeded(seed, "start", client=client):
        return site, _net_of(reference, site, task)


def load_net(reference: str, task: Task) -> SplitModel:
    """Returns the site's model, split, with weights that mean nothing yet."""
    return _net_of(reference, load_site(reference, task), task)


def load_site(reference: str, task: Task) -> Site:
    found = _find(reference)
    try:
        if callable(found) and not isinstance(found, Site):
            found = found(task) if inspect.signature(found).parameters else found()
    except FedSSAError:
        raise
    except Exception as error:  # a site's own code may raise anything
        raise ClientError(f"{reference}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Site):
        raise SettingsError(
            f"{reference}: is a {type(found).__name__}; it should be a Site or a function that returns one"
        )
    return found


def _find(reference: str) -> Any:
    path, _, name = reference.partition(":")
    if not path.endswith(".py"):
        return import_path("site", reference if name else f"{path}:site")
    module = _import_file(Path(path).expanduser().absolute())
    if not hasattr(module, name or "site"):
        raise SettingsError(f"{path}: has no '{name or 'site'}'")
    return getattr(module, name or "site")


def _import_file(path: Path) -> ModuleType:
    """Imports a file, which may import what lies beside it."""
    if not path.is_file():
        raise SettingsError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except FedSSAError:
        raise
    except Exception as error:  # a site's own code may raise anything
        raise ClientError(f"{path}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _net_of(reference: str, site: Site, task: Task) -> SplitModel:
    model = site.model
    return build(f"{reference}: its model", (lambda _: model) if isinstance(model, nn.Module) else model, task)


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
    if missing := set(data.test.y.tolist()) - set(data.train.y.tolist()):
        raise DataError(f"test: has class {min(missing)}, which train has not")
