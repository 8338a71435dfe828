"""The environment is what a run's bits depend on besides its settings: versions, machine, kernel."""

import os
import platform
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedssa.errors import FedSSAWarning, RunDirError, SettingsError
from fedssa.kernels import VARIABLE, bits_of, resolve
from fedssa.kernels.devices import device_of

BITS_DEPEND_ON = ("fedssa", "torch", "numpy", "kernel", "device")


def describe(kernel: str, device: str) -> dict[str, Any]:
    """Describes this machine; a kernel or device that it has not is refused."""
    return {
        "fedssa": version("fedssa"),
        "torch": version("torch"),
        "kernel": resolve(kernel),
        "device": str(device_of(device)),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def refuse_other(path: Path, then: dict[str, Any], kernel: str, device: str) -> None:
    """Refuses to continue a run where its bits could change half-way."""
    now, then = describe(kernel, device), {"device": "cpu"} | then  # the first runs do not say it
    for key in BITS_DEPEND_ON:
        if then.get(key) != now[key] and not (key == "kernel" and bits_of(str(then.get(key))) == bits_of(now[key])):
            where = f"with {VARIABLE}={then[key]}" if key == "kernel" and _has(kernel, str(then[key])) else "there"
            raise RunDirError(
                f"{path}: begun with {key} {then.get(key)}, this is {now[key]}; "
                f"resume it {where}, or start anew with another --out"
            )
    if then.get("cpu") != now["cpu"]:
        warnings.warn(
            f"{path}: begun on another processor ({then.get('cpu')}); bits may differ", FedSSAWarning, stacklevel=3
        )


def _has(kernel: str, named: str) -> bool:
    """Tells whether the environment can choose that kernel for this run on this machine."""
    try:
        return kernel == "auto" and resolve(named) == named
    except SettingsError:
        return False


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
