"""A user's own things are named by an import path."""

import importlib
import sys
from pathlib import Path
from typing import Any

from fedssa.errors import SettingsError


def import_path(key: str, path: str) -> Any:
    """Imports what `package.module:name` names, from the current directory too, as with `python -m`."""
    module, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(f"{key} = {path!r}: cannot be imported ({type(error).__name__}: {error})") from error
