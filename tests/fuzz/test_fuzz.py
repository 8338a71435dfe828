"""A short campaign, and once more all that once ended in a traceback or in another result without a word."""

import base64
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedssa.deploy.messages import RECORD
from tests.fuzz.answers import given_to, hello_to, honest
from tests.fuzz.campaign import PARTS, campaign
from tests.fuzz.recipes import read
from tests.fuzz.runs import Runs, seen, shown

CORPUS = Path(__file__).parent / "corpus"
SHORT = {"answers": 60, "hellos": 60, "recipes": 15, "runs": 8, "data": 40}


@pytest.mark.parametrize("name", PARTS)
def test_a_short_campaign_finds_nothing(name: str) -> None:
    with closing(PARTS[name]()) as part:
        tally = campaign(part, name, cases=SHORT[name], seconds=3.0)
    assert tally.failures == []
    assert tally.counts["refused"] > 0


@pytest.mark.parametrize("file", sorted((CORPUS / "recipes").iterdir()), ids=lambda file: file.stem)
def test_recipes_that_once_failed_are_refused(tmp_path: Path, file: Path) -> None:
    assert read(file.read_bytes(), tmp_path / "recipe.toml").verdict == "refused"


@pytest.mark.parametrize(
    "kept", json.loads((CORPUS / "messages.json").read_text()), ids=lambda kept: f"{kept['method']}: {kept['what']}"
)
def test_messages_that_once_passed_or_failed_are_refused(kept: dict[str, Any]) -> None:
    record = ConfigRecord({"message": kept["message"], "tensors": base64.b64decode(kept["tensors"])})
    given, records = honest(kept["method"], 0), RecordDict({RECORD: record})
    found = given_to(given, 0, records, "") if kept["part"] == "answers" else hello_to(given, records, "")
    assert found.verdict == "refused", found


def test_files_that_once_passed_for_others_are_refused() -> None:
    with closing(Runs()) as part:
        for name, other in (("environment", "outcome"), ("models/client-00000", "models/client-00001")):
            suffix = ".safetensors" if "/" in name else ".json"
            copy = part.place / "copy"
            shutil.copytree(part.whole, copy)
            shutil.copy(copy / f"{other}{suffix}", copy / f"{name}{suffix}")
            assert seen(copy, shown, None, name).verdict == "refused"
            shutil.rmtree(copy)
