"""federation init, keygen, public, invite, register, unregister, renew, run."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import app, err, need_flower, out
from fedssa.errors import SettingsError

PROXY_PORT, SUPERLINK_PORT = 9443, 9092

federation_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Run a federation across sites.")
app.add_typer(federation_app, name="federation")


class LabelsOf(StrEnum):
    own = "own"
    foreign = "foreign"
    none = "none"


class TypeOf(StrEnum):
    float32 = "float32"
    int64 = "int64"
    bool = "bool"


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
    input_shape: Annotated[
        str, typer.Option(help="Of the task: channels,height,width of images, or any other numbers.")
    ] = "1,32,32",
    input_type: Annotated[TypeOf, typer.Option(help="Of the task: int64 for token ids.")] = TypeOf.float32,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: only on loopback.")] = False,
) -> None:
    """Write what a coordinator needs: certificates, configuration, programs, systemd units, a reverse proxy."""
    need_flower()
    from fedssa.deploy.address import Address, is_loopback
    from fedssa.deploy.server.directory import init

    port = port or (superlink_port if is_loopback(host) else PROXY_PORT)
    names = [name.strip() for name in clients.split(",") if name.strip()]
    init(
        directory,
        Address(host, port, superlink_port, insecure),
        names,
        classes=classes,
        input_shape=_numbers("--input-shape", input_shape),
        input_type=input_type.value,
    )
    _say(f"written: {directory}; read {directory / 'README.md'}, then edit {directory / 'federation.toml'}")


@federation_app.command(name="keygen")
def keygen_command(directory: Directory = Path()) -> None:
    """Make the key with which orders are signed, for a directory of an earlier version: init makes one."""
    need_flower()
    from fedssa.deploy.server.directory import add_order_key

    invited = add_order_key(directory)
    _say(f"written: {directory / 'coordinator.key'} (keep it) and {directory / 'coordinator.pub'}")
    if invited:
        _say(f"send coordinator.pub to {', '.join(invited)}: it goes beside their federation.toml")


@federation_app.command(name="public")
def public_command(
    file: Annotated[Path, typer.Argument(help="A .npz file with arrays x and y.", show_default=False)],
    directory: Directory = Path(),
    labels: Annotated[
        LabelsOf, typer.Option(help="Of which classes y is: the task's own, others, or none.")
    ] = LabelsOf.none,
    per_round: Annotated[int, typer.Option(min=0, help="Samples of a round; 0: all of them.")] = 1000,
) -> None:
    """Add public data, for a method that uses some: every site gets the same arrays with its invitation."""
    need_flower()
    from fedssa.deploy.server.directory import add_public

    public = add_public(directory, file, labels.value, per_round)
    _say(f"written: {directory / 'public.npz'} and a section of federation.toml: {len(public.samples)} samples")


@federation_app.command(name="invite")
def invite_command(name: Name, directory: Directory = Path()) -> None:
    """Write what one site needs: root certificate, federation.toml, its command line, instructions."""
    need_flower()
    from fedssa.deploy.server.directory import invite

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
    from fedssa.deploy.server.directory import register

    register(directory, name, public_key)
    _say(f"registered: {name} may join")


@federation_app.command(name="unregister")
def unregister_command(name: Name, directory: Directory = Path()) -> None:
    """Keep a site out: the SuperLink no longer takes its key. It may be registered again with another one."""
    need_flower()
    from fedssa.deploy.server.directory import unregister

    unregister(directory, name)
    _say(f"unregistered: the key of {name} is refused from now on")


@federation_app.command(name="renew")
def renew_command(directory: Directory = Path()) -> None:
    """Make another certificate for the server, with the same authority: sites need nothing new."""
    need_flower()
    from fedssa.deploy.server.directory import renew

    until = renew(directory)
    _say(f"the server's certificate is good until {until:%Y-%m-%d}; restart the SuperLink and the proxy")


@federation_app.command(name="run")
def run_command(
    directory: Annotated[Path, typer.Argument(help="The coordinator's directory.", show_default=False)],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The run directory.  [default: DIRECTORY/runs/METHOD-sSEED]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that is there.")] = False,
) -> None:
    """Run the federation, and show each round when it is done. Sites that are away are waited for or left out."""
    need_flower()
    from fedssa.deploy.server.submit import Submitted
    from fedssa.report.read.summary import summarise
    from fedssa.report.tables.terminal import run_table
    from fedssa.runs.directory import RunDir
    from fedssa.sites.agreement import read_federation

    table = read_federation(directory).table
    target = out_dir or directory / "runs" / f"{table['method']['name'].rpartition(':')[2]}-s{table['seed']}"
    submitted = Submitted(directory, target, resume=resume)
    total = submitted.federation.settings.rounds.total
    try:
        for record in submitted.records(tell=err.print):
            accuracy = "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"
            absent = "".join(f", without {submitted.federation.clients[k]}" for k in record.absent)
            diverged = "".join(f", {submitted.federation.clients[k]} diverged" for k in record.diverged)
            err.print(f"round {record.t + 1} of {total}, {accuracy}{absent}{diverged}")
    except KeyboardInterrupt:
        err.print(f"the run goes on without this window; its records: {target}")
        sys.exit(130)
    out.print(run_table(summarise(RunDir.open(target))))


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise SettingsError(f"{option} {text}: should be whole numbers, separated by commas") from None


def _say(text: str) -> None:
    out.print(text, soft_wrap=True, highlight=False)
