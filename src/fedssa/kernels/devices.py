"""A device is what computes a client's round: the CPU, or an accelerator that torch finds (`run.device`)."""

import re

import torch

from fedssa.errors import SettingsError

CPU = torch.device("cpu")


def refuse_unknown(said: str, where: str = "run.device") -> None:
    """Refuses what is no device on any machine."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?|mps|auto", said):
        raise SettingsError(f"{where} = {said!r}: should be 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto'")


def devices_here() -> list[str]:
    """Lists this machine's devices as a setting names them; the first is what "auto" means."""
    cuda = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def device_of(said: str, where: str = "run.device") -> torch.device:
    """Returns the device that a setting means on this machine; one that is not there is refused."""
    refuse_unknown(said, where)
    here = devices_here()
    wanted = {"auto": here[0], "cuda": "cuda:0"}.get(said, said)
    if wanted not in here:
        raise SettingsError(f"{where} = {said!r}: is not there; this machine has {', '.join(here)}")
    return torch.device(wanted)


def in_words(device: str) -> str:
    """Names one of this machine's devices, with its maker's name if torch knows that."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device
