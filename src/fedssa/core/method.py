"""A federated method is a class of hooks. Their defaults exchange nothing: that is Standalone."""

import math
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

from torch import Tensor

from fedssa.core.check import check
from fedssa.core.fields import Counts, Ids, Shaped, Shapes
from fedssa.core.groups import is_layout_id, sizes_in
from fedssa.core.message import Nothing, all_rules, hints, rules
from fedssa.core.public import Labels
from fedssa.core.samples import in_words
from fedssa.core.tensors import Layout
from fedssa.errors import AnswerError, SettingsError

if TYPE_CHECKING:
    from fedssa.core.client import Client, ClientInfo
    from fedssa.core.context import Context, ServerContext
    from fedssa.core.task import Task
    from fedssa.core.training import Batch, Phase, Training

Kind = Literal[  # what may travel, from little to much; pictures and lists show it in this order
    "class rows",
    "headers",
    "prototypes",  # mean representations by class
    "Gram matrices",  # how alike samples look to a model
    "outputs",  # logits or probabilities
    "features",  # representations of single samples
    "mean inputs",
    "generators",
    "shared models",  # small ones that all clients have, beside their own
    "extractors",
    "models",  # the clients' own, whole
]
UNTUNED = "untuned"  # the kind by which a tuned client says its headline from before
Server = TypeVar("Server")
Down = TypeVar("Down")
Up = TypeVar("Up")


class Upload(NamedTuple, Generic[Up]):
    """The server has this of one participant: what it said when it joined, and this round's payload."""

    info: "ClientInfo"
    payload: Up


class Messages(NamedTuple):
    """Names the three types of a method."""

    server: Any
    down: Any
    up: Any


@dataclass(frozen=True)
class Preset:
    """A preset is a method with fixed settings and a name of its own."""

    settings: Mapping[str, Any]  # of [method]
    colour: str
    about: str = ""
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the recipe's other sections

    @property
    def means(self) -> dict[str, Any]:
        """Lists all that its name fixes, with the section's name where it is not the method's."""
        others = {f"{section}.{key}": value for section, table in self.sections.items() for key, value in table.items()}
        return {**self.settings, **others}


class Method(ABC, Generic[Server, Down, Up]):
    """Subclass as a frozen, keyword-only dataclass: its fields are hyper-parameters; it holds no state.

    `Method[Server, Down, Up]` names the types of the server's state and of the messages each way. State is the server's
    (which `aggregate` replaces) or the client's (`net`, and what `client.keep` was given). In the order of one round:
    downlink, receive, phases and in them loss, uplink, tuning, aggregate.
    """

    # A method declares what it needs; settings that do not fit are refused before a run.
    needs_shared_model: ClassVar[bool] = False  # then task.build_shared is there
    needs_same_models: ClassVar[bool] = False  # then the shared model is every client's; others are refused
    needs_server_model: ClassVar[bool] = False  # then task.build_server is there
    needs_public: ClassVar[Literal["no", "unlabelled", "labelled"]] = "no"
    fixed_public: ClassVar[bool] = False  # X_t must be the same in every round: public.per_round = 0
    takes_foreign_labels: ClassVar[bool] = False  # whether "labelled" public data may have classes of their own
    needs_float_inputs: ClassVar[str] = ""  # what it does with inputs, if that takes a single tensor of floats
    groups: ClassVar[Literal["none", "layout", "architecture"]] = "none"  # what a client says of its model in its hello
    simulation_only: ClassVar[str] = ""  # why it cannot run across sites, if it cannot
    fixed_rounds: ClassVar[int | None] = None  # the only number of rounds that it can run
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # of the recipe's other sections, if it has its own
    kinds: ClassVar[tuple[str, ...]] = ("head",)  # all kinds of inference that its `predict` may name, headline first
    at_sites: ClassVar[Mapping[str, Any]] = {}  # its options that have another default across sites
    averages: ClassVar[bool] = (
        False  # all it takes from several clients goes through ctx.mean, which [aggregation] rules
    )
    num_views: ClassVar[int] = 1  # augmented views of a batch; if more, `loss` gets x as [views, B, ...]

    # These say how it is shown.
    travels: ClassVar[tuple[Kind, ...]] = ()  # what its clients and its server send, the main thing first
    server_trains: ClassVar[bool] = False  # whether its `aggregate` uses `ctx.fit`
    colour: ClassVar[str] = ""  # in every picture
    presets: ClassVar[Mapping[str, Preset]] = {}

    def server_init(self, ctx: "ServerContext") -> Server:
        """Returns the server's state before round 0."""
        return self.messages().server()  # type: ignore[no-any-return]

    def client_init(self, client: "Client", ctx: "Context") -> None:
        """May change the start of the client's net, and give it what it is to keep (`client.keep`)."""

    def downlink(self, server: Server, to: "ClientInfo", ctx: "ServerContext") -> Down | None:
        """Returns what client `to` is sent in round t."""
        return None

    def receive(self, client: "Client", down: Down | None, ctx: "Context") -> None:
        """Fuses the downlink into the client."""

    def phases(self, client: "Client", ctx: "Context") -> Iterable["Phase"]:
        """Lists what is trained one after another; by default everything, on the client's own samples.

        A method may yield its phases, so that what stands between two of them is done between them.
        """
        from fedssa.core.training import Phase

        return (Phase(self.loss),)

    def loss(self, client: "Client", batch: "Batch") -> Tensor:
        """Returns the loss of one batch; what is to be summed over the steps goes to `client.stats.add`."""
        return client.cross_entropy(client.net(batch.x), batch.y)

    def uplink(self, client: "Client", ctx: "Context") -> Up | None:
        """Returns what leaves the client after training."""
        return None

    def tuning(self, client: "Client", ctx: "Context") -> Sequence["Phase"]:
        """Lists what is trained after the upload and before the evaluation, so that nothing of it can leave."""
        return ()

    def aggregate(self, server: Server, uploads: Sequence[Upload[Up]], ctx: "ServerContext") -> Server:
        """Returns the server's new state; uploads are in the order of client ids. It may train with `ctx.fit`."""
        return server

    def check(self, up: Up, info: "ClientInfo", ctx: "Context") -> None:
        """Raises AnswerError for what types and shapes of the fields cannot say."""

    def predict(self, client: "Client", x: Any) -> dict[str, Tensor]:
        """Returns named logits of x, a batch of inputs as a model takes them; the first is the headline.

        A class with a `predict` of its own declares its `kinds`, too; a server then refuses scores of any other.
        """
        return {"head": client.net(x)}

    def metrics(self, before: Server, after: Server) -> dict[str, float]:
        """Returns what a round's record should say of the server: how far it moved, what it has counted."""
        return {}

    def refuse_unfit(self, task: "Task", server: "Training") -> None:
        """Raises SettingsError unless the method can do something with this task; asked before a run starts."""
        if self.needs_float_inputs and not task.takes_floats:
            raise SettingsError(
                f"{type(self).__name__} {self.needs_float_inputs}, so its input must be one tensor of floats; "
                f"the data have {in_words(task.inputs)}: choose another method"
            )
        self.refuse(task, server)

    def refuse(self, task: "Task", server: "Training") -> None:
        """Raises SettingsError if it can do nothing with such a task or such a [server]; asked before a run starts."""

    def advice(self, ctx: "Context") -> list[str]:
        """Returns what a user should know before such a run starts."""
        return []

    def shared_width(self, width: int) -> int:
        """Returns how wide the shared model's representation is where that of the clients is `width`.

        Raises SettingsError if the method cannot do with that; it is asked before a run.
        """
        return width

    def layouts(self, task: "Task") -> Mapping[str, Layout]:
        """Returns what `like(name)` means for models of the method's own that both sides can build."""
        return {}

    def refuses_noise(self) -> str:
        """Says what of its uploads cannot carry noise, if [privacy] makes no sense with it; else nothing."""
        if not self.shares:
            return "sends nothing"
        broken = [rule.without_noise for rule in all_rules(self.messages().up) if rule.without_noise]
        return f"sends {broken[0]}, which with noise would be none" if broken else ""

    @property
    def sends_counts(self) -> bool:
        """Tells whether its uploads say how many samples a client has, so that this cannot be kept back."""
        told = [rule for rule in all_rules(self.messages().up) if isinstance(rule, Shaped)]
        return any(isinstance(rule, Counts) or "n" in rule.dims for rule in told)

    @property
    def uses_public_labels(self) -> bool:
        """Tells whether it needs labels of public data."""
        return self.needs_public == "labelled"

    @property
    def learnt_besides(self) -> tuple[str, ...]:
        """Says what server or clients learn besides what such messages tell with any method; sites are shown it."""
        return ()

    # -- what the core asks ------------------------------------------------------------------------------------------
    @classmethod
    def messages(cls) -> Messages:
        """Returns the types in `Method[Server, Down, Up]`; generic classes in between are filled in."""
        return _messages_of(cls)

    @classmethod
    def known_kinds(cls) -> tuple[str, ...] | None:
        """Returns `kinds`, and what tuning adds; None if a class has its own `predict` and does not declare them."""
        for base in cls.__mro__:
            if "kinds" in vars(base):
                return cls.kinds if cls.tuning is Method.tuning else (*cls.kinds, UNTUNED)
            if "predict" in vars(base):
                return None
        raise AssertionError("Method has kinds")

    def lacks_labels(self, labels: Labels) -> bool:
        """Tells whether the method needs public labels of another kind than these."""
        enough = ("own", "foreign") if self.takes_foreign_labels else ("own",)
        return self.uses_public_labels and labels not in enough

    @property
    def shares(self) -> bool:
        """Tells whether anything leaves its clients."""
        return self.messages().up is not Nothing

    @property
    def shares_by_class(self) -> bool:
        """Tells whether a downlink goes by classes, so that a class with one owner brings that client nothing."""
        return any(isinstance(rule, Ids) for hint in hints(self.messages().down).values() for rule in rules(hint))

    def check_info(self, info: "ClientInfo", task: "Task") -> None:
        """Raises AnswerError unless a client says of its model what the method's groups ask for."""
        fits = {
            "none": info.group is None,
            "layout": is_layout_id(info.group or ""),
            "architecture": info.group in task.prototypes,
        }
        if not fits[self.groups]:
            raise AnswerError(f"group {info.group!r} is none of this method's ({self.groups})")

    def check_upload(self, up: Up | None, info: "ClientInfo", ctx: "Context") -> None:
        """Raises AnswerError unless `uplink` could have sent this; every upload is checked before it is aggregated."""
        if not self.shares:
            if up is not None:
                raise AnswerError("an upload, and the method has none")
            return
        if up is None:
            raise AnswerError("an answer without the method's upload")
        check(up, self.shapes(info, ctx))
        self.check(up, info, ctx)

    def check_downlink(self, down: Down | None, info: "ClientInfo", ctx: "Context") -> None:
        """Raises AnswerError unless `downlink` could have sent this; a site checks before it uses anything."""
        if down is not None:
            check(down, self.shapes(info, ctx))

    def shapes(self, info: "ClientInfo", ctx: "Context") -> Shapes:
        """Says what the letters stand for in a message from or to this client."""
        task = ctx.task
        sizes = {"S": task.num_classes, "S_k": len(info.seen_classes), "d": task.width, "n": info.num_train}
        sizes["X"] = math.prod(task.input_shape)
        if task.num_clients:
            sizes["N"] = task.num_clients
        if ctx.public is not None:
            sizes["P"] = ctx.public.num
        if self.groups == "layout" and info.group:
            sizes |= sizes_in(info.group)
        layouts = dict(self.layouts(task))
        if self.needs_shared_model or self.needs_same_models:
            layouts["shared"] = task.shared_layout(self.shared_width(task.width))
        if self.groups == "architecture" and info.group is not None and info.group in task.prototypes:
            layouts["prototype"] = task.prototype_layouts[info.group]
        return Shapes(sizes, info.seen_classes, layouts)


@cache
def _messages_of(cls: type) -> Messages:
    filled: dict[Any, Any] = {}
    for base in (base for kind in cls.__mro__ for base in getattr(kind, "__orig_bases__", ())):
        origin, parts = get_origin(base), [filled.get(part, part) for part in get_args(base)]
        if origin is Method:
            return Messages(*(Nothing if isinstance(part, TypeVar) else part for part in parts))
        filled |= zip(getattr(origin, "__parameters__", ()), parts, strict=False)
    return Messages(Nothing, Nothing, Nothing)


def growth_remedy(method: Method[Any, Any, Any], *, noisy: bool = False) -> str:
    """Says what to do about a header that grows, in terms of settings that this method has."""
    options = [f"method.{name}" for name in ("t_stable", "mu0") if hasattr(method, name)]
    return f"use a smaller {' or '.join([*(['privacy.sigma'] if noisy else []), *options]) or 'local.lr'}"
