"""[models] says which architecture each client has, by name or as a table.

    archs = ["cnn-1", { name = "zoo:resnet", depth = 20, local = { lr = 0.003 } }]
    clients = { north = "zoo:resnet" }

What stands beside the name goes to the factory as keyword arguments. `local` are settings of [local] for clients of
this architecture; they may stand beside the name too, unless the factory has an argument of that name. `output` names
the entry of what the model returns that holds its logits.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Annotated, Any

from annotated_types import Ge, Gt, Len
from torch import nn

from fedssa.core.outputs import Taking
from fedssa.core.task import Task
from fedssa.core.training import LocalTraining
from fedssa.errors import SettingsError
from fedssa.models import MODELS, ModelFactory
from fedssa.settings.build import look_up, parse_section, refuse_unknown
from fedssa.settings.labels import Entry, entries_of, label
from fedssa.settings.training import LocalSection, local_training, name_and_options, with_own_defaults

LOCAL_KEYS = tuple(field.name for field in fields(LocalSection))


@dataclass(frozen=True, kw_only=True)
class Models:
    """Client k gets archs[k mod len(archs)], unless `clients` says otherwise."""

    archs: Annotated[tuple[Entry, ...], Len(1)] = ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5")
    width: Annotated[int, Ge(1)] = 500  # d, the size of the representation
    header_scale: Annotated[float, Gt(0)] = 1.0  # multiplies the initial weights of every client's header
    shared: Entry | None = None  # the small model that some methods exchange; None: the last of archs
    server: Entry | None = None  # the model that some methods train at the server
    prototypes: tuple[Entry, ...] | None = None  # what the server of some methods can run; None: the architectures
    clients: dict[str, Entry] | None = None  # the architecture of single clients, by name or number


@dataclass(frozen=True)
class Arch:
    """An architecture is a factory with its arguments, and how its clients train."""

    entry: Entry  # as a recipe says it, in one way of several
    factory: ModelFactory
    local: LocalTraining

    @property
    def label(self) -> str:
        return label(self.entry)

    @property
    def model(self) -> str:
        """Names the model alone, whatever its clients' training."""
        return label({key: value for key, value in _as_table(self.entry).items() if key != "local"})

    @property
    def prototype(self) -> str:
        """Names the model in messages, where names have few letters."""
        return re.sub(r"[^A-Za-z0-9_.:-]+", "-", self.model)[:100].strip("-")

    @property
    def is_ours(self) -> bool:
        return any(self.factory is ours for ours in MODELS.values())


def parse_models(table: Mapping[str, Any], local: Mapping[str, Any]) -> tuple[Models, list[Arch], dict[str, Arch]]:
    """Returns the section, the architectures that clients may have, and all by their labels."""
    said = parse_section("models", Models, table)
    known: dict[str, Arch] = {}

    def entry(key: str, one: Entry) -> Entry:
        arch = _arch(f"models.{key}", one, local)
        if key in ("shared", "server") and _as_table(arch.entry).get("local"):
            raise SettingsError(f"models.{key}: no client trains as it; give its local settings in models.archs")
        known[arch.label] = arch
        return arch.entry

    def several(key: str) -> Iterator[Entry]:
        return (entry(key, one) for one in getattr(said, key))

    made = replace(
        said,
        archs=tuple(several("archs")),
        shared=None if said.shared is None else entry("shared", said.shared),
        server=None if said.server is None else entry("server", said.server),
        prototypes=None if said.prototypes is None else tuple(several("prototypes")),
        clients=None if said.clients is None else {name: entry("clients", one) for name, one in said.clients.items()},
    )
    return made, [known[label(one)] for one in entries_of(asdict(made))], known


def _as_table(entry: Entry) -> dict[str, Any]:
    return {"name": entry} if isinstance(entry, str) else entry


def _arch(key: str, entry: Entry, local: Mapping[str, Any]) -> Arch:
    name, options = name_and_options(key, entry)
    factory: Any = look_up(key, name, MODELS)
    arguments, own, output = _sorted_out(f"{key}, {name}", factory, options)
    training, own = _local(f"{key}, {name}", own, local)
    made = partial(factory, **arguments) if arguments else factory
    chosen: Entry = {
        "name": name,
        **arguments,
        **({"output": output} if output else {}),
        **({"local": own} if own else {}),
    }
    bound = partial(_taking, made, output) if output else made
    return Arch(chosen if len(chosen) > 1 else name, bound, training)


def _taking(factory: ModelFactory, output: str, task: Task) -> nn.Module:
    return Taking(factory(task), output)


def _sorted_out(
    key: str, factory: Any, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """Tells the arguments of a factory from local settings and the name of the output."""
    taken, takes_any = _parameters(factory)
    local = options.get("local", {})
    if not isinstance(local, Mapping):
        raise SettingsError(f"{key}: local = {local!r}: should be a table of settings of [local]")
    beside = [option for option in options if option in LOCAL_KEYS and option not in taken]
    own = {**local, **{option: options[option] for option in beside}}
    output = options.get("output") if "output" not in taken else None
    left = {option for option in ("local", "output") if option not in taken or option == "local"}
    arguments = {option: options[option] for option in options if option not in (*beside, *left)}
    if not takes_any:
        refuse_unknown(key, arguments, taken)
    if output is not None and not isinstance(output, str):
        raise SettingsError(f"{key}: output = {output!r}: should be the name of an entry")
    return arguments, own, output


def _parameters(factory: Any) -> tuple[list[str], bool]:
    """Returns the arguments of a factory after the task, and whether it takes any others."""
    try:
        _, *rest = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # what is written in C may not say
        return [], True
    taken = [one.name for one in rest if one.kind is not inspect.Parameter.VAR_KEYWORD]
    return taken, any(one.kind is inspect.Parameter.VAR_KEYWORD for one in rest)


def _local(key: str, own: Mapping[str, Any], local: Mapping[str, Any]) -> tuple[LocalTraining, dict[str, Any]]:
    """Returns how clients of an architecture train, and what is their own of it."""
    try:
        refuse_unknown("local", own, LOCAL_KEYS)
        training, resolved = local_training(with_own_defaults(own, local))
    except SettingsError as error:
        raise SettingsError(f"{key}: {error}" if own else str(error)) from error
    return training, {option: resolved[option] for option in own}
