"""FedSSA: model-heterogeneous personalized federated learning.

    import fedssa
    result = fedssa.run("recipes/quickstart.toml", out="runs/first", workers=2)
    model = result.load(3)

Names are imported when they are first used, so that `import fedssa` and the command line start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedssa.api.models import export, predict
    from fedssa.api.result import RunResult, result
    from fedssa.api.run import resume, run
    from fedssa.core.method import Method
    from fedssa.core.privacy import Privacy
    from fedssa.core.samples import Input, as_input
    from fedssa.core.split import SplitModel, split
    from fedssa.core.task import Task
    from fedssa.simulate.saved_models import load_client, load_client_data
    from fedssa.sites.site import Site

    __version__: str

__all__ = [
    "Input",
    "Method",
    "Privacy",
    "RunResult",
    "Site",
    "SplitModel",
    "Task",
    "as_input",
    "export",
    "load_client",
    "load_client_data",
    "predict",
    "result",
    "resume",
    "run",
    "split",
]

_HOMES = {
    "Input": "fedssa.core.samples",
    "Method": "fedssa.core.method",
    "Privacy": "fedssa.core.privacy",
    "RunResult": "fedssa.api.result",
    "Site": "fedssa.sites.site",
    "SplitModel": "fedssa.core.split",
    "Task": "fedssa.core.task",
    "as_input": "fedssa.core.samples",
    "export": "fedssa.api.models",
    "load_client": "fedssa.simulate.saved_models",
    "load_client_data": "fedssa.simulate.saved_models",
    "predict": "fedssa.api.models",
    "result": "fedssa.api.result",
    "resume": "fedssa.api.run",
    "run": "fedssa.api.run",
    "split": "fedssa.core.split",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedssa")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedssa' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Lists what is for users, so that TAB offers all of it and nothing else."""
    return [*__all__, "__version__"]
