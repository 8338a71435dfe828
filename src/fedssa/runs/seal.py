"""What lies on a disk carries a hash of itself, so that damage is found when it is read.

A JSON object has a field `digest`, which is the hash of the others and of the name of its file. A line of rounds.jsonl
and of audit.jsonl has a field `chain` at its end, which is the hash of that line and of all lines before it. What older
editions wrote has neither, and is accepted as such; a chain that has begun may not break, and its first link vouches
for the lines before it, too.
"""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedssa.records import RoundRecord

DIGEST = "digest"
LINK = re.compile(rb',"chain":"([0-9a-f]{64})"}$')
LINK_LENGTH = len(',"chain":""}') + 64


def sealed(value: Mapping[str, Any], file: Path) -> dict[str, Any]:
    return {**value, DIGEST: _digest(json.loads(json.dumps(value)), file)}  # of what will be read: tuples become lists


def unsealed(value: dict[str, Any], file: Path) -> dict[str, Any]:
    """Returns the object without its digest; raises ValueError if that is of another content or another file."""
    content = {key: part for key, part in value.items() if key != DIGEST}
    if DIGEST in value and value[DIGEST] != _digest(content, file):
        raise ValueError("its digest does not fit its content")
    if DIGEST not in value and any(_is_digest_of_others(key, value, file) for key in value):
        raise ValueError("its digest has another name")  # so it is none of an older edition
    return content


def _is_digest_of_others(key: str, value: dict[str, Any], file: Path) -> bool:
    said = value[key]
    if not isinstance(said, str) or len(said) != sha256().digest_size * 2:
        return False
    return said == _digest({other: part for other, part in value.items() if other != key}, file)


def _digest(content: Any, file: Path) -> str:
    return sha256(_sorted_json([file.name, content]).encode()).hexdigest()


_sorted_json = json.JSONEncoder(sort_keys=True).encode  # json.dumps would make another encoder for every digest


class Chain:
    """A chain goes along with the lines of a file, as they are read or written, one after another."""

    def __init__(self, *, has_begun: bool = False) -> None:
        """Of a chain that has begun, the first line must have a link already."""
        self._hash, self._has_begun = sha256(), has_begun

    @property
    def link(self) -> str:
        return self._hash.hexdigest()

    def line(self, said: str) -> str:
        """Returns a JSON object as the next line, with its link."""
        return f'{said[:-1]},"chain":"{self._next(said.encode())}"}}'

    def said(self, line: bytes) -> bytes:
        """Returns the next line without its link; raises ValueError if the chain breaks at it."""
        link = LINK.search(line, len(line) - LINK_LENGTH)
        said = line[: link.start()] + b"}" if link else line
        expected = self._next(said)
        if (link is None and self._has_begun) or (link is not None and link[1].decode() != expected):
            raise ValueError("the chain of digests breaks")
        self._has_begun = link is not None
        return said

    def record(self, line: bytes) -> RoundRecord:
        """Reads the next line of rounds.jsonl; raises ValueError if it is no record, or if the chain breaks at it."""
        return RoundRecord.from_json(self.said(line))

    def _next(self, said: bytes) -> str:
        self._hash.update(said + b"\n")
        return self.link
