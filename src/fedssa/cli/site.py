"""site check, keygen, run, export."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedssa.cli.common import app, need_flower, out, plain
from fedssa.errors import SettingsError

if TYPE_CHECKING:
    from fedssa.sites.agreement import Federation

site_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Take part in a federation as a site.")
app.add_typer(site_app, name="site")

SiteName = Annotated[
    str, typer.Argument(help="The site: a Python file (FILE.py or FILE.py:NAME) or module:NAME.", show_default=False)
]
FederationFile = Annotated[Path, typer.Option("--federation", help="The federation.toml that the coordinator sent.")]
StateDir = Annotated[Path, typer.Option("--state-dir", help="Where this site keeps its model.")]
FEDERATION, STATE = Path("federation.toml"), Path("state")


@site_app.command()
def check(site: SiteName, federation: FederationFile = FEDERATION) -> None:
    """Tell whether a site fits a federation, which classes it has, and exactly what it would send."""
    need_flower()
    from fedssa.deploy.site.check import preview

    shown = preview(site, _federation(federation))
    _say(f"classes:   {', '.join(shown.classes)}")
    _say(f"samples:   {shown.num_train} to train, {shown.num_val} to validate, {shown.num_test} to test")
    if shown.public:
        _say(f"public:    {shown.public}")
    for note in shown.privacy:
        _say(f"privacy:   {note}")
    for choice in shown.choices or ["uploads carry no noise; all numbers are told as they are"]:
        _say(f"privacy:   {choice}")
    for advice in shown.advice:
        _say(f"warning:   {advice}")
    _say("it would send, once, when it joins:")
    wide = max(len(name) for name, _ in (*shown.hello, *shown.answer))
    for name, value in shown.hello:
        _say(f"  {name:<{wide}}  {value}")
    _say("and in each round it takes part in (values of a first round that was really trained here, and forgotten):")
    for name, value in shown.answer:
        _say(f"  {name:<{wide}}  {value}")
    for name, kind, shape, size in shown.tensors:
        _say(f"  {'payload':<{wide}}  {name}: {kind} {shape}, {size:,} bytes")
    _say(f"in all {shown.num_bytes:,} bytes a round, of which {shown.num_payload_bytes:,} are tensors")


@site_app.command(name="keygen")
def keygen_command(
    folder: Annotated[Path, typer.Argument(help="The folder of the invitation.", show_default=False)],
) -> None:
    """Make this site's key pair. The private key never leaves the folder."""
    need_flower()
    from fedssa.deploy.server.certificates import make_node_key

    if not folder.is_dir():
        raise SettingsError(f"{folder}: there is no such folder")
    public = make_node_key(folder, folder.absolute().name)
    _say(f"written: {folder / 'key'} (keep it) and {public} (send it to the coordinator)")


@site_app.command()
def run(
    site: SiteName,
    name: Annotated[str, typer.Option(help="The name of this site in federation.toml.", show_default=False)],
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the coordinator.", show_default=False)],
    federation: FederationFile = FEDERATION,
    state_dir: StateDir = STATE,
    root_certificates: Annotated[Path | None, typer.Option(help="The coordinator's root certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="This site's private key.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where this node's own processes meet.")] = 9100,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no key: only on loopback.")] = False,
) -> None:
    """Take part: start a Flower SuperNode that runs this site and nothing else."""
    need_flower()
    from fedssa.deploy.site.node import node_command, node_environment

    client = _federation(federation).client_id(name)
    security = (root_certificates, key)
    command = node_command(site, client, federation, state_dir, superlink, port, None if insecure else security)
    sys.stdout.flush()
    os.execve(command[0], command, os.environ | node_environment(state_dir))  # noqa: S606 (ours, found beside python)


@site_app.command()
def export(
    target: Annotated[Path, typer.Argument(help="The safetensors file to write.", show_default=False)],
    state_dir: StateDir = STATE,
    run_id: Annotated[str | None, typer.Option("--run", help="A run's id.  [default: the latest run]")] = None,
) -> None:
    """Write this site's personal model as safetensors, for fedssa.load_client."""
    need_flower()
    from fedssa.deploy.site.export import export_model

    saved = export_model(state_dir, target, run_id)
    _say(f"written: {target}: the model after round {saved.t} of run {saved.run}")
    _say(f"to load it: fedssa.load_client({str(target)!r}, SITE)")


def _federation(path: Path) -> "Federation":
    from fedssa.sites.agreement import read_federation

    return read_federation(path)


def _say(text: str) -> None:
    out.print(plain(text) if not text.startswith(" ") else text.replace("[", r"\["), soft_wrap=True, highlight=False)
