"""Whether a federation is well is said in one line, and in an exit code that a monitor understands."""

from dataclasses import dataclass
from datetime import UTC, datetime

from fedssa.deploy.server.standing import Standing, address_of
from fedssa.runs.audit import Kind
from fedssa.runs.files import how_to_continue

WELL, DEGRADED, DOWN = 0, 1, 2
DAYS_BEFORE_EXPIRY = 30  # a certificate that ends sooner is told of
REFUSALS: tuple[Kind, ...] = ("kept-out", "diverged", "refused", "dropped")
OVERDUE = 2  # times deploy.deadline


@dataclass(frozen=True)
class Health:
    code: int
    line: str


def health_of(standing: Standing) -> Health:
    """Says what is wrong, the worst first, or that all is well."""
    down, degraded = _down(standing), _degraded(standing)
    if not down and not degraded:
        return Health(WELL, f"well: {_progress(standing)}")
    word = "down" if down else "degraded"
    return Health(DOWN if down else DEGRADED, f"{word}: {'; '.join([*down, *degraded])} ({_progress(standing)})")


def expires(standing: Standing) -> datetime | None:
    """Returns when the server's certificate expires, if it has one that can be read."""
    from cryptography.x509 import load_pem_x509_certificate  # slow

    address = address_of(standing)
    if address is None or address.insecure or standing.directory is None:
        return None
    try:
        content = (standing.directory / "certificates" / "server.pem").read_bytes()
        return load_pem_x509_certificate(content).not_valid_after_utc
    except (OSError, ValueError):
        return None


def _down(standing: Standing) -> list[str]:
    told, address = list[str](), address_of(standing)
    if address is not None and not address.is_listened_to():
        told.append(
            f"no SuperLink listens on port {address.superlink_port}; start it: {standing.directory}/superlink.sh"
        )
    path = standing.path
    if standing.state == "stopped" and standing.run_dir is None:
        told.append(f"{path} was submitted and has not begun; does superexec.sh run?")
    elif standing.state == "stopped" and path is not None:
        told.append(f"nobody works on {path}; to continue it: {how_to_continue(path)}")
    elif standing.state == "diverged":
        told.append(f"{path} has ended: it diverged")
    return told


def _degraded(standing: Standing) -> list[str]:
    told, last = list[str](), standing.last
    if last is not None and standing.state == "running":
        refused = [event for event in standing.trouble_of_last_round if event.kind in REFUSALS]
        known = {event.site for event in refused}
        absent = [site.name for k, site in enumerate(standing.sites) if k in last.absent and site.name not in known]
        told += [f"absent: {', '.join(absent)}"] if absent else []
        told += [f"{event.kind}: {event.site or f'node {event.node}'} ({event.reason})" for event in refused]
    if standing.run_dir is not None and (seconds := standing.going_for) is not None:
        allowed = standing.run_dir.settings["deploy"]["deadline" if standing.records else "join_deadline"]
        if seconds > OVERDUE * allowed:
            told.append(f"its round has been going for {seconds:.0f} s, with a deadline of {allowed:g} s")
    if (until := expires(standing)) and (days := (until - datetime.now(UTC)).days) < DAYS_BEFORE_EXPIRY:
        told.append(f"the server's certificate expires in {days} days; renew it: {_renew(standing)}")
    return told


def _renew(standing: Standing) -> str:
    return f"fedssa federation renew --directory {standing.directory}"


def _progress(standing: Standing) -> str:
    if standing.path is None:
        return "no run yet"
    last, rounds = standing.last, f"{standing.num_rounds} of {standing.total} rounds"
    if standing.state == "starting" or last is None:
        joined = sum(site.joined is not None for site in standing.sites)
        return f"{standing.state}, {joined} of {len(standing.sites)} sites have joined"
    asked = len(last.clients) + len(last.absent) + len(last.diverged)
    return f"{standing.state}, {rounds}, {len(last.clients)} of {asked} answers in the last"
