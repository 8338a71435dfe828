"""Messages and states are frozen dataclasses whose fields say type and shape, and one codec serves them all.

    @message
    class ClassRows:
        classes: Annotated[Tensor, ids("S_k")]
        rows: Annotated[Tensor, f32("S_k", "d + 1")]

What crosses a client's boundary, what a server is between two rounds and what a client keeps are such classes. A field
is a Tensor, an int, float, bool, str, a Literal, a message, or a dict or tuple of those; `| None` where it may be
absent. `encode` makes one JSON object and named tensors of a message, `decode` makes the message again and names the
field that does not fit; fedssa.core.check compares a message with the shapes of a federation. Nothing else packs or
unpacks.

The letters of shapes are the paper's:  S classes · S_k seen classes of the client · d width of the representation ·
n its training samples · P public samples of a round · N clients · L numbers of its extractor · X numbers of an input.
Any other letter stands for the size it has when it is first met in a message.
"""

import json
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from hashlib import sha256
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import torch
from torch import Tensor

from fedssa.core.fields import Rule
from fedssa.core.tensors import Tensors, all_finite, own, pack, unpack
from fedssa.core.tensors import digest as digest_of_tensors
from fedssa.errors import AnswerError

T = TypeVar("T")
FORMAT = 2  # messages and states of another format are refused
_NOTHING: Any = object()  # stands for what JSON leaves out
_TOO_LARGE = 2**1023  # an int from here on does not become a float


@dataclass_transform(frozen_default=True, eq_default=False)
def message(cls: type[T]) -> type[T]:
    return dataclass(frozen=True, eq=False)(cls)


@message
class Nothing:
    """Stands where a method has no server's state, no downlink or no uplink."""


def of(generic: type[T], kind: Any) -> type[T]:
    """Fills a generic message with a type known only once a method is chosen: of(Answer, method.messages().up)."""
    filled: type[T] = generic[kind]  # type: ignore[index]
    return filled


# -- leaves --------------------------------------------------------------------------------------------------------
def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every tensor and every plain value with the path to it, and nothing for what is None."""
    if value is None:
        return
    if is_dataclass(value):
        parts: Iterator[tuple[str, object]] = ((f.name, getattr(value, f.name)) for f in fields(value))
    elif isinstance(value, Mapping):
        parts = ((str(key), part) for key, part in value.items())
    elif isinstance(value, (tuple, list)):
        parts = ((str(i), part) for i, part in enumerate(value))
    else:
        yield path, value
        return
    for name, part in parts:
        yield from leaves(part, f"{path}.{name}" if path else name)


def tensors_in(value: object) -> Tensors:
    """Returns the tensors themselves, not copies."""
    return {path: leaf for path, leaf in leaves(value) if isinstance(leaf, Tensor)}


def plain_in(value: object) -> dict[str, Any]:
    return {path: leaf for path, leaf in leaves(value) if not isinstance(leaf, Tensor)}


def digest(value: object) -> str:
    """Equal digests mean equal names, shapes, types and bits of tensors, and equal plain values."""
    return _digest(tensors_in(value), plain_in(value))


def _digest(tensors: Tensors, plain: dict[str, Any]) -> str:
    of_tensors = digest_of_tensors(tensors)
    if not plain:
        return of_tensors
    return sha256((of_tensors + json.dumps(plain, sort_keys=True)).encode()).hexdigest()


def num_params(value: object) -> int:
    """Counts floating-point values, which is the paper's measure of communication."""
    floats = sum(tensor.numel() for tensor in tensors_in(value).values() if tensor.is_floating_point())
    return floats + sum(isinstance(leaf, float) for leaf in plain_in(value).values())


def num_bytes(value: object) -> int:
    """Counts the bytes of all values, class ids and counts too; a plain number takes eight."""
    tensors = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(value).values())
    return tensors + sum(len(leaf.encode()) if isinstance(leaf, str) else 8 for leaf in plain_in(value).values())


def is_finite(value: object) -> bool:
    return all_finite(tensors_in(value).values())


def owned(value: T) -> T:
    """Returns a copy on the CPU that shares no memory with anything."""
    copied: T = mapped(_tensors_alone(own), value)
    return copied


def moved(value: T, device: torch.device) -> T:
    """Returns the same on a device; tensors that are there already are not copied."""
    there: T = mapped(_tensors_alone(lambda tensor: tensor.to(device)), value)
    return there


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns the same with every leaf, a tensor or a plain value, replaced by what the function makes of it."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: mapped(function, getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, Mapping):
        return {key: mapped(function, part) for key, part in value.items()}
    return tuple(mapped(function, part) for part in value) if isinstance(value, (tuple, list)) else function(value)


def _tensors_alone(function: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf


# -- the codec -----------------------------------------------------------------------------------------------------
def encode(value: object) -> tuple[dict[str, Any], Tensors]:
    """Returns a JSON object, which says the plain values and which parts are there, and the tensors by path."""
    return {"format": FORMAT, "fields": _plain(value)}, tensors_in(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, Tensor):
        return _NOTHING
    if is_dataclass(value):
        said = ((f.name, _plain(getattr(value, f.name))) for f in fields(value))
        return {name: part for name, part in said if part is not _NOTHING}
    if isinstance(value, Mapping):
        said = ((str(key), _plain(part)) for key, part in value.items())
        return {name: part for name, part in said if part is not _NOTHING}
    if isinstance(value, (tuple, list)):
        return [None if (part := _plain(item)) is _NOTHING else part for item in value]
    return value


def decode(kind: type[T], meta: Mapping[str, Any], tensors: Tensors) -> T:
    """Returns the message that was encoded; AnswerError names what is missing, unknown or of another type."""
    if meta.get("format") != FORMAT:
        given = repr(meta.get("format"))[:100]
        raise AnswerError(f"a message of format {given}, this is {FORMAT}; install the same version")
    left = dict(tensors)
    made: T = _made(_form(kind), meta.get("fields", _NOTHING), "", left)
    if left:
        raise AnswerError(f"{min(left)[:100]} is no field of {_title(kind)}")
    return made


def to_bytes(value: object) -> bytes:
    meta, tensors = encode(value)
    return pack(meta, {name: own(tensor) for name, tensor in tensors.items()})


def from_bytes(kind: type[T], blob: bytes) -> T:
    return decode(kind, *unpack(blob))


def seal(value: object) -> bytes:
    """Makes bytes for a disk, with a digest so that damage is noticed."""
    meta, tensors = encode(value)
    return pack(meta | {"digest": digest(value)}, {name: own(tensor) for name, tensor in tensors.items()})


def unseal(kind: type[T], blob: bytes) -> T:
    meta, tensors = unpack(blob)
    sealed = meta.pop("digest", None)
    value = decode(kind, meta, tensors)
    if digest(value) != sealed:
        raise AnswerError("its digest does not fit its content")
    return value


def verify_seal(blob: bytes) -> None:
    """Raises AnswerError unless a sealed message is what was written, whatever its type."""
    meta, tensors = unpack(blob)
    if _digest(tensors, plain_in(meta.get("fields"))) != meta.get("digest"):
        raise AnswerError("its digest does not fit its content")


def _made(form: "_Form", node: Any, path: str, left: Tensors) -> Any:
    kind, optional = form.kind, form.optional
    if kind is Tensor:
        if node is not _NOTHING and node is not None:
            return _wrong(path, "a tensor")
        return left.pop(path) if path in left else _missing(path, optional)
    if node is _NOTHING or node is None:
        return _missing(path, optional)
    if form.is_message:
        return _made_message(kind, node, path, left)
    if form.origin is dict:
        return _made_dict(form, node, path, left)
    if form.origin is tuple:
        items = _expect(node, list, path)
        return tuple(_made(form.parts[0], item, join(path, str(i)), left) for i, item in enumerate(items))
    if form.origin is Literal:
        return node if node in form.args else _wrong(path, f"one of {', '.join(map(repr, form.args))}")
    if kind is float and type(node) is int and abs(node) < _TOO_LARGE:
        node = float(node)
    return _expect(node, kind, path)


def _made_message(kind: Any, node: Any, path: str, left: Tensors) -> Any:
    said = dict(_expect(node, dict, path))
    cls = get_origin(kind) or kind
    parts = {}
    for field in fields_of(kind):
        part = said.pop(field.name, _NOTHING)
        if part is _NOTHING and field.may_be_missing:
            continue
        parts[field.name] = _made(field.form, part, join(path, field.name), left)
    if said:
        raise AnswerError(f"{join(path, min(said))[:100]} is no field of {_title(kind)}")
    return cls(**parts)


def _made_dict(form: "_Form", node: Any, path: str, left: Tensors) -> Any:
    key_kind, part_form = form.args[0], form.parts[1]
    said = _expect(node, dict, path)
    if part_form.kind is Tensor and not part_form.optional:
        if said:
            return _wrong(join(path, min(said)), "a tensor")
        below = sorted(name for name in left if name.startswith(f"{path}.") or not path)
        return {_key(key_kind, name.removeprefix(f"{path}."), path): left.pop(name) for name in below}
    parts = {}
    for name, part in said.items():
        parts[_key(key_kind, name, path)] = _made(part_form, part, join(path, name), left)
    return parts


def _key(kind: Any, name: str, path: str) -> Any:
    try:
        key = kind(name)
    except ValueError:
        key = None
    return key if str(key) == name else _wrong(join(path, name), f"a key of type {kind.__name__}")


class _Form(NamedTuple):
    """A type without its rules and its `| None`, taken apart once, since that takes longer than to read a value."""

    kind: Any
    optional: bool
    origin: Any
    args: tuple[Any, ...]
    parts: "tuple[_Form, ...]"  # of what a dict or a tuple holds
    is_message: bool


class Field(NamedTuple):
    """What the codec and the checks ask of a field, found out once for every kind of message."""

    name: str
    form: _Form
    rules: tuple[Rule, ...]
    may_be_missing: bool  # it has a default and is no tensor


def _form(hint: Any) -> _Form:
    kind, optional = _without_none(_without_rules(hint))
    origin, args = get_origin(kind), get_args(kind)
    parts = tuple(map(_form, args)) if origin in (dict, tuple) else ()
    return _Form(kind, optional, origin, args, parts, is_dataclass(origin or kind))


@cache
def fields_of(kind: Any) -> tuple[Field, ...]:
    known, found = hints(kind), []
    for f in fields(get_origin(kind) or kind):
        hint = known[f.name]
        is_new = f.default_factory is not MISSING and not _may_hold_tensors(hint)  # older editions lack it
        has_default = f.default is not MISSING or is_new
        form = _form(hint)
        found.append(Field(f.name, form, tuple(rules(hint)), has_default and form.kind is not Tensor))
    return tuple(found)


@cache
def hints(kind: Any) -> dict[str, Any]:
    """Returns the types of a message's fields with their rules; the parameters of a generic one are filled in."""
    cls, given = get_origin(kind) or kind, get_args(kind)
    parameters = dict(zip(getattr(cls, "__parameters__", ()), given, strict=False))
    return {f.name: _filled(f.type, parameters) for f in fields(cls)}


def _filled(hint: Any, parameters: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return parameters.get(hint, Nothing)
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        return Union[tuple(_filled(part, parameters) for part in get_args(hint))]  # noqa: UP007
    if any(isinstance(part, TypeVar) for part in get_args(hint)):
        return get_origin(hint)[tuple(_filled(part, parameters) for part in get_args(hint))]
    return hint


def _without_rules(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _without_none(kind: Any) -> tuple[Any, bool]:
    if not (isinstance(kind, types.UnionType) or get_origin(kind) is Union):
        return kind, False
    inner = [part for part in get_args(kind) if part is not types.NoneType]
    assert len(inner) == 1, f"{kind}: a field is of one type, or None"
    return _without_rules(inner[0]), len(inner) < len(get_args(kind))


def _may_hold_tensors(kind: Any) -> bool:
    return kind is Tensor or is_dataclass(kind) or any(map(_may_hold_tensors, get_args(kind)))


def _expect(node: Any, kind: Any, path: str) -> Any:
    return node if type(node) is kind else _wrong(path, f"of type {kind.__name__}")


def _wrong(path: str, what: str) -> Any:
    raise AnswerError(f"{path[:100] or 'the message'} should be {what}")


def _missing(path: str, optional: bool) -> None:
    if not optional:
        raise AnswerError(f"{path[:100] or 'the message'} is missing")


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _title(kind: Any) -> str:
    return str(getattr(get_origin(kind) or kind, "__name__", kind))


# -- rules ---------------------------------------------------------------------------------------------------------
def all_rules(kind: Any) -> Iterator[Rule]:
    """Yields the rules at all fields of a message, those of messages within it too."""
    if is_dataclass(get_origin(kind) or kind):
        for hint in hints(kind).values():
            yield from rules(hint)
            yield from all_rules(_without_rules(hint))
    else:
        for part in get_args(kind):
            yield from all_rules(_without_rules(part))


def rules(hint: Any) -> list[Rule]:
    """Returns the rules at the whole field and those beside its `| None`."""
    if get_origin(hint) is Annotated:
        inner, *said = get_args(hint)
        return [rule for rule in said if isinstance(rule, Rule)] + rules(inner)
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        return [rule for part in get_args(hint) for rule in rules(part)]
    return []
