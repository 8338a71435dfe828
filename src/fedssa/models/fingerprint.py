"""A fingerprint tells whether a model is still the one that it was when its weights were trained.

It has two halves. The structure is the names, types and shapes of the state and the classes of all layers, with what
torch's own layers say of themselves. The code is that of the model's own classes, without comments, docstrings and
layout, since the same layers may compute something else. Neither depends on the machine or on a random number.
"""

import ast
import inspect
import json
import textwrap
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import nn

from fedssa.core.tensors import layout_of, module_state
from fedssa.errors import FedSSAWarning, ModelError

OURS = ("torch.", "fedssa.", "builtins")  # their versions are known by other means


def fingerprint(net: nn.Module) -> str:
    """Returns the digests of structure and code as one word."""
    classes = {kind for part in net.modules() for kind in type(part).__mro__ if not _is_ours(kind)}
    code = sorted(_code(kind) for kind in classes)
    return f"{_digest(structure(net))}-{_digest(code)}"


def structure(net: nn.Module) -> dict[str, str]:
    """Describes each layer and each tensor of a model's state by name."""
    layers = {f"{name}()": _layer(part) for name, part in net.named_modules()}
    state = layout_of(module_state(net)).items()
    return layers | {name: f"{dtype} {list(shape)}".removeprefix("torch.") for name, (dtype, shape) in state}


def what_changed(then: str, now: str) -> str | None:
    """Says which half of a fingerprint is another one, if either is."""
    if then.split("-")[0] != now.split("-")[0]:
        return "structure"
    return "code" if then != now else None


def _warn(told: str) -> None:
    warnings.warn(told, FedSSAWarning, stacklevel=4)


def check_unchanged(
    path: Path, name: str, net: nn.Module, then: str | None, tell: Callable[[str], object] = _warn
) -> None:
    """Refuses old weights for a model of another structure, and tells if its code is another."""
    changed = then and what_changed(then, fingerprint(net))
    if changed == "structure":
        raise ModelError(
            f"{path}: the structure of {name} has changed since its weights were trained; restore its code"
        )
    if changed:
        tell(f"{path}: the code of {name} has changed since its weights were trained; it may compute something else")


def _layer(part: nn.Module) -> str:
    """Leaves out what a user's layer says of itself, which may be anything."""
    kind = type(part)
    return f"{kind.__qualname__}({part.extra_repr()})" if kind.__module__.startswith("torch.") else kind.__qualname__


def _is_ours(kind: type) -> bool:
    return f"{kind.__module__}.".startswith(OURS)


@cache
def _code(kind: type) -> str:
    """Returns the syntax of a class; one that was typed into a prompt has no source, and counts by its name."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return kind.__qualname__
    return json.dumps(_plain(tree))


def _plain(node: Any) -> Any:
    """Writes a syntax tree without empty fields, of which each version of Python has others."""
    if isinstance(node, ast.AST):
        return [type(node).__name__, *_fields(node)]
    if isinstance(node, list):
        return [_plain(item) for item in node if not _is_docstring(item)]
    return repr(node)


def _fields(node: ast.AST) -> Iterator[Any]:
    for name, value in ast.iter_fields(node):
        if value not in (None, []):
            yield [name, _plain(value)]


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _digest(value: object) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:16]
