"""federation status, health, audit, metrics: for the operator of a coordinator."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fedssa.cli.common import out, plain
from fedssa.cli.federation import federation_app
from fedssa.errors import SettingsError
from fedssa.studies.estimate import duration

if TYPE_CHECKING:
    from fedssa.deploy.server.standing import SiteStanding, Standing
    from fedssa.runs.audit import Event

Place = Annotated[
    Path, typer.Argument(metavar="DIRECTORY", help="The coordinator's directory, or a run's.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


@federation_app.command()
def status(directory: Place, as_json: AsJson = False) -> None:
    """Show how the latest run stands: its sites, when each was heard, its accuracy and its last trouble."""
    from fedssa.deploy.server.standing import standing_of

    standing = standing_of(directory)
    if as_json:
        typer.echo(json.dumps(_facts(standing), indent=2))
    else:
        out.print(status_view(standing))


@federation_app.command()
def health(directory: Place) -> None:
    """Say in one line whether all is well.

    Exit codes: 0 well · 1 degraded: in the last round a site was absent, refused or dropped, a round is overdue, or the
    certificate ends soon · 2 down: no SuperLink, a run that nobody works on or that diverged, or bad input.
    """
    from fedssa.deploy.server.health import health_of
    from fedssa.deploy.server.standing import standing_of

    found = health_of(standing_of(directory))
    out.print(plain(found.line), soft_wrap=True, highlight=False)
    raise typer.Exit(found.code)


@federation_app.command()
def audit(
    directory: Place,
    site: Annotated[str | None, typer.Option(help="Only events of this site.", show_default=False)] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last events.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show what happened, and verify that nothing in the log was changed or cut off."""
    from fedssa.deploy.server.standing import all_events
    from fedssa.runs.audit import AUDIT, last_link

    standing, events = all_events(directory)
    if site is not None and site not in (known := [each.name for each in standing.sites]):
        raise SettingsError(f"--site {site}: is no site of this federation; they are {', '.join(known)}")
    chosen = [event for event in events if site in (None, event.site)][-(last or 0) :]
    for event in chosen:
        typer.echo(event.to_json() if as_json else event_line(event))
    folders = [standing.directory, standing.run_dir.path if standing.run_dir else None]
    for folder in (folder for folder in folders if folder is not None and (folder / AUDIT).exists()):
        typer.echo(f"{folder / AUDIT}: the chain is whole, its last link is {last_link(folder)}", err=True)


@federation_app.command()
def metrics(
    directory: Place,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback; 0: any that is free.")] = 9464,
) -> None:
    """Serve metrics for Prometheus, on loopback only, until Ctrl-C. The run need not know of it."""
    from fedssa.deploy.server.metrics import MetricsServer

    with MetricsServer(directory, port) as server:
        typer.echo(f"metrics: {server.url} (Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit from None


def event_line(event: "Event") -> str:
    when = event.time[:19].replace("T", " ") or "before there was a log"
    where = "" if event.t is None else "start" if event.t < 0 else f"round {event.t + 1}"
    who = event.site or ("" if event.node is None else f"node {event.node}")
    why = " ".join(part for part in (event.word and f"{event.word}:", event.reason, event.run) if part)
    return f"{when}  {where:<9} {event.kind:<12} {who:<12} {why}".rstrip()


def status_view(standing: "Standing") -> RenderableType:
    from fedssa.report.tables.fitted import Fitted, Shown

    sites, trouble = standing.sites, [_trouble(site) for site in standing.sites]
    table = Fitted(
        [
            Shown("site", [site.name for site in sites], left=True),
            Shown("key", [site.key for site in sites], 2, left=True),
            Shown("joined", [_ago(standing, site.joined) for site in sites], 3),
            Shown("heard", [_ago(standing, site.heard) for site in sites]),
            Shown("round", ["-" if site.round is None else str(site.round) for site in sites]),
            Shown("answers", [str(site.num_answers) for site in sites], 4),
            Shown("acc. %", ["-" if site.accuracy is None else f"{100 * site.accuracy:.2f}" for site in sites], 1),
            Shown("last trouble", trouble, left=True, folded=True),
        ]
    )
    return Group(*map(Text, _head(standing)), *([table] if sites else []))


def _head(standing: "Standing") -> list[str]:
    if standing.path is None:
        return [f"{standing.directory}: no run yet; to start one: fedssa federation run {standing.directory}"]
    lines = [f"{standing.path}: {standing.state}, {standing.num_rounds} of {standing.total or '?'} rounds"]
    if (last := standing.last) and last.headline is not None:
        lines[0] += f", accuracy {last.headline:.2%}"
    if (usual := standing.seconds_a_round) is not None:
        lines.append(f"a round takes {duration(usual)}")
    if (going := standing.going_for) is not None:
        what = f"round {standing.num_rounds + 1}" if standing.records else "waiting for sites"
        lines.append(f"{what}, for {duration(going)}")
    return lines


def _trouble(site: "SiteStanding") -> str:
    event = site.trouble
    return "-" if event is None else f"{event.kind} in round {(event.t or 0) + 1}: {event.reason}"


def _ago(standing: "Standing", when: float | None) -> str:
    return "-" if when is None else f"{duration(max(0.0, standing.now - when))} ago"


def _facts(standing: "Standing") -> dict[str, Any]:
    last = standing.last
    return {
        "directory": standing.directory and str(standing.directory),
        "run": standing.path and str(standing.path),
        "state": standing.state,
        "rounds": standing.num_rounds,
        "total": standing.total,
        "accuracy": last and last.headline,
        "seconds_a_round": standing.seconds_a_round,
        "going_for": standing.going_for,
        "sites": [asdict(site) for site in standing.sites],
    }
