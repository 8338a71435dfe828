"""federation init, invite, register, unregister, renew; site keygen."""

from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import need_flower, out
from fedssa.cli.federation_app import federation_app
from fedssa.cli.site_app import site_app
from fedssa.errors import SettingsError

PROXY_PORT, SUPERLINK_PORT = 9443, 9092

Directory = Annotated[Path, typer.Option("--directory", "-d", help="The coordinator's directory.")]
Name = Annotated[str, typer.Argument(help="One of the clients in federation.toml.", show_default=False)]


@federation_app.command(name="init")
def init_command(
    directory: Annotated[Path, typer.Argument(help="A directory that does not exist yet.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="Name or address under which sites reach this machine.", show_default=False)
    ],
    clients: Annotated[str, typer.Option(help="Names of the sites, separated by commas.", show_default=False)],
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help=f"Port of the reverse proxy.  [default: {PROXY_PORT}; on loopback, no proxy]"
        ),
    ] = None,
    superlink_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Of the SuperLink, on loopback.")
    ] = SUPERLINK_PORT,
    classes: Annotated[int, typer.Option(min=2, help="Classes of the task.")] = 10,
    input_shape: Annotated[str, typer.Option(help="Of the task: channels,height,width or size.")] = "1,32,32",
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: only on loopback.")] = False,
) -> None:
    """Write what a coordinator needs: certificates, configuration, programs, systemd units, a reverse proxy."""
    need_flower()
    from fedssa.flower.coordinator import Address, init
    from fedssa.flower.node import is_loopback

    port = port or (superlink_port if is_loopback(host) else PROXY_PORT)
    names = [name.strip() for name in clients.split(",") if name.strip()]
    init(
        directory,
        Address(host, port, superlink_port, insecure),
        names,
        classes=classes,
        input_shape=_numbers("--input-shape", input_shape),
    )
    _say(f"written: {directory}; read {directory / 'README.md'}, then edit {directory / 'federation.toml'}")


@federation_app.command(name="invite")
def invite_command(name: Name, directory: Directory = Path()) -> None:
    """Write what one site needs: root certificate, federation.toml, its command line, instructions."""
    need_flower()
    from fedssa.flower.coordinator import invite

    folder = invite(directory, name)
    _say(f"written: {folder}; send it to {name} (nothing in it is secret), and ask for its key.pub")


@federation_app.command(name="register")
def register_command(
    name: Name,
    public_key: Annotated[Path, typer.Argument(help="The key.pub that the site sent.", show_default=False)],
    directory: Directory = Path(),
) -> None:
    """Let a site in: the SuperLink takes its key from now on."""
    need_flower()
    from fedssa.flower.coordinator import register

    register(directory, name, public_key)
    _say(f"registered: {name} may join")


@federation_app.command(name="unregister")
def unregister_command(name: Name, directory: Directory = Path()) -> None:
    """Keep a site out: the SuperLink no longer takes its key. It may be registered again with another one."""
    need_flower()
    from fedssa.flower.coordinator import unregister

    unregister(directory, name)
    _say(f"unregistered: the key of {name} is refused from now on")


@federation_app.command(name="renew")
def renew_command(directory: Directory = Path()) -> None:
    """Make another certificate for the server, with the same authority: sites need nothing new."""
    need_flower()
    from fedssa.flower.coordinator import renew

    until = renew(directory)
    _say(f"the server's certificate is good until {until:%Y-%m-%d}; restart the SuperLink and the proxy")


@site_app.command(name="keygen")
def keygen_command(
    folder: Annotated[Path, typer.Argument(help="The folder of the invitation.", show_default=False)],
) -> None:
    """Make this site's key pair. The private key never leaves the folder."""
    need_flower()
    from fedssa.flower.certificates import make_node_key

    if not folder.is_dir():
        raise SettingsError(f"{folder}: there is no such folder")
    public = make_node_key(folder, folder.absolute().name)
    _say(f"written: {folder / 'key'} (keep it) and {public} (send it to the coordinator)")


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise SettingsError(f"{option} {text}: should be whole numbers, separated by commas") from None


def _say(text: str) -> None:
    out.print(text, soft_wrap=True, highlight=False)
