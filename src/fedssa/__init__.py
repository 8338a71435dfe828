"""FedSSA: model-heterogeneous personalized federated learning.

    import fedssa
    result = fedssa.run("recipes/quickstart.toml", out="runs/first", workers=2)
    model = fedssa.load_client("runs/first", 3)

Names are imported when they are first used, so that `import fedssa` and the command line start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedssa.core.method import Method
    from fedssa.core.samples import as_input
    from fedssa.core.split import SplitModel, split
    from fedssa.core.task import Task
    from fedssa.simulate.run import RunResult, resume, run
    from fedssa.simulate.saved_models import load_client, load_client_data
    from fedssa.sites.site import Site

__all__ = [
    "Method",
    "RunResult",
    "Site",
    "SplitModel",
    "Task",
    "as_input",
    "load_client",
    "load_client_data",
    "resume",
    "run",
    "split",
]

_HOMES = {
    "Method": "fedssa.core.method",
    "RunResult": "fedssa.simulate.run",
    "Site": "fedssa.sites.site",
    "SplitModel": "fedssa.core.split",
    "Task": "fedssa.core.task",
    "as_input": "fedssa.core.samples",
    "load_client": "fedssa.simulate.saved_models",
    "load_client_data": "fedssa.simulate.saved_models",
    "resume": "fedssa.simulate.run",
    "run": "fedssa.simulate.run",
    "split": "fedssa.core.split",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedssa' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
