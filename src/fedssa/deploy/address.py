"""An address says where sites find a federation. Whoever asks for it need not wait for torch or Flower."""

import json
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from typing_extensions import override

from fedssa.errors import SettingsError

ADDRESS_FILE = "address.json"


@dataclass(frozen=True)
class Address:
    """An address says where sites find the federation, and where the SuperLink listens on loopback."""

    host: str
    port: int
    superlink_port: int
    insecure: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]+", self.host):
            raise SettingsError(f"--host {self.host}: should be a name or an address, without a port")
        if self.insecure and not is_loopback(self.host):
            raise SettingsError(f"--insecure: only on loopback, and {self.host} is not; leave it out")

    @classmethod
    def read(cls, directory: Path) -> "Address":
        try:
            return cls(**json.loads((directory / ADDRESS_FILE).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(
                f"{directory}: is no coordinator's directory; make one: fedssa federation init"
            ) from error

    @override
    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def is_listened_to(self) -> bool:
        """Tells whether a SuperLink takes connections."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.superlink_port), timeout=2):
            return True
        return False


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
