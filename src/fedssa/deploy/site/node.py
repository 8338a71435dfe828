"""A site's Flower node gets its command line here: one site, its own folders, no telemetry, no update checks."""

import json
import os
import sys
from pathlib import Path

from fedssa.deploy.address import is_loopback
from fedssa.deploy.signing import read_coordinator
from fedssa.errors import SettingsError
from fedssa.sites.find import absolute

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def node_environment(state_dir: Path) -> dict[str, str]:
    """Puts our programs on the path, since Flower starts them by name and this environment may not be activated."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return QUIET | {"FLWR_HOME": str(state_dir.absolute() / "flwr"), "PATH": path}


def node_command(
    site: str,
    client: int,
    federation: Path,
    state_dir: Path,
    superlink: str,
    port: int,
    security: tuple[Path | None, Path | None] | None,
) -> list[str]:
    """`security` is the root certificate and the private key, or None for neither, which only loopback may have."""
    read_coordinator(federation.parent)
    secured = _security(superlink, security)
    options = {
        "client-id": client,
        "federation": str(federation.absolute()),
        "site": absolute(site),
        "state-dir": str(state_dir.absolute()),
    }
    if security and security[1]:
        options["key"] = str(security[1].absolute())
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    command = [str(Path(sys.executable).parent / "flower-supernode"), "--superlink", superlink]
    command += ["--host", "127.0.0.1", "--port", str(port), "--node-config", config]
    return command + secured


def _security(superlink: str, security: tuple[Path | None, Path | None] | None) -> list[str]:
    if security is None:
        if not is_loopback(superlink.rpartition(":")[0].strip("[]")):
            raise SettingsError(f"--insecure: only on loopback, and {superlink} is not; leave it out")
        return ["--insecure"]
    for option, path in zip(("--root-certificates", "--key"), security, strict=True):
        if path is None or not path.is_file():
            raise SettingsError(f"{option} {path or ''}: there is no such file")
    return ["--root-certificates", str(security[0]), "--auth-supernode-private-key", str(security[1])]
