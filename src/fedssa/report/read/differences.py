"""Two runs are compared record by record: equal digests of uploads and states mean equal bits.

FLOPs are left out, since sites do not count them, and they follow from everything else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from fedssa.records import RoundRecord
from fedssa.runs.directory import RunDir

NOT_COMPARED = ("flops", "tuning_flops", "server_flops")
NOTHING = object()


def differences(one: RunDir, other: RunDir) -> list[str]:
    """Lists what differs, the first round first; nothing if the runs have the same records."""
    told = []
    for mine, theirs in zip_longest(one.records(), other.records()):
        if mine is None or theirs is None:
            there, record = (one, mine) if theirs is None else (other, theirs)
            told.append(f"{_round(record.t)}: only {there.path} has it")
            continue
        unequal = _unequal(mine, theirs, one.client_name)
        told += [f"{_round(mine.t)}: {place} is {_short(a)} and {_short(b)}" for place, a, b in unequal]
    return told


def num_digests(records: Sequence[RoundRecord]) -> int:
    """Returns how many uploads and states the records tell of."""
    return sum(bool(c.upload_digest) + bool(c.state_digest) for record in records for c in record.clients)


def _round(t: int) -> str:
    return "the start" if t < 0 else f"round {t}"


def _unequal(one: RoundRecord, other: RoundRecord, name: Callable[[int], str]) -> Iterator[tuple[str, Any, Any]]:
    mine, theirs = (dict(_leaves(asdict(record), name)) for record in (one, other))
    for place in dict.fromkeys([*mine, *theirs]):
        pair = mine.get(place, NOTHING), theirs.get(place, NOTHING)
        if pair[0] != pair[1]:
            yield place, *pair


def _leaves(value: Any, name: Callable[[int], str], place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in NOT_COMPARED:
                yield from _leaves(part, name, f"{place} {key}".lstrip())
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        for client in value:
            of_client = {key: part for key, part in client.items() if key != "id"}
            yield from _leaves(of_client, name, f"client {name(client['id'])}")
    else:
        yield place, value


def _short(value: Any) -> str:
    if value is NOTHING:
        return "absent"
    return f"{value[:8]}…" if isinstance(value, str) and len(value) > 16 else str(value)
