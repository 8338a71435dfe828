"""The site of a system test: a share of the digits, and on demand a bad day. Its owner writes what is to go wrong into
a file `mode` beside the site."""

import resource
import time
from pathlib import Path

from flwr.app import RecordDict

from fedssa.deploy.messages import Reply, to_records
from fedssa.deploy.site import respond
from fedssa.sites.site import Site
from tests.deploy.in_process import simulated_site
from tests.deploy.wrong import WRONG, with_parts
from tests.system.hostile import MEGABYTE, Hostile, asked_now

KINDS = {  # in which round a wrong site sends what, and what the server should say
    **dict(enumerate(WRONG[kind] for kind in ("NaN", "a wrong shape", "other classes", "a huge norm"))),
    4: (with_parts(tensors=bytes(102_000_000)), r"102,000,\d+ bytes, more than deploy.max_bytes"),
}


def site_of(folder: Path, table: str, client: int) -> Site:
    mode = folder / "mode"
    todo = mode.read_text() if mode.exists() else ""
    if todo == "hang":
        (folder / "hangs").touch()
        time.sleep(600)
    if todo == "wrong":
        vars(respond)["to_records"] = _wrong
    if todo == "full":
        _have_a_full_disk()
    if todo == "hostile":
        _be_hostile(Hostile(folder))
    return simulated_site(table, client)


def _wrong(value: object) -> RecordDict:
    """Of an answer what is wrong with it in its round; a hello and a refusal are as they should be."""
    records = to_records(value)
    return KINDS[value.t][0](records) if isinstance(value, Reply) else records


def _have_a_full_disk() -> None:
    """In round 0 no file of this process may grow beyond a megabyte: its log does not, and its state would."""
    if asked_now().metadata.group_id == "0":
        resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _be_hostile(site: Hostile) -> None:
    """In round 0 it gives orders to others and answers with too much; in round 1 it announces an answer, and no more,
    as often as it is asked. What it answers afterwards is refused by Flower, since it has answered."""
    if site.asked.metadata.group_id == "0":
        site.orders(site.victim)
        site.orders(Hostile.SERVER)
        site.answers(num_objects=12, send=True)
    if site.asked.metadata.group_id == "1":
        site.answers(num_objects=1, send=False)
        raise RuntimeError("a hostile site trains nothing, so it has no answer to send when it is asked again")
