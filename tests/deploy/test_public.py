"""Public data and groups across sites: everyone has the same arrays, or is told so; a hello says a group's id alone."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

import fedssa
from fedssa.core.task import Task
from fedssa.core.tensors import blob_of, tensors_of
from fedssa.deploy.messages import RECORD
from fedssa.deploy.signing import PUBLIC_KEY_FILE, read_order_key, signed_order
from fedssa.deploy.site.check import preview
from fedssa.deploy.site.respond import respond
from fedssa.errors import DataError, SettingsError
from fedssa.methods import FSFL, METHODS
from fedssa.runs.directory import RunDir
from fedssa.sites.agreement import FILE_NAME, parse_federation, read_federation, read_public
from tests.deploy.in_process import Sites, node, record_in, said_in, sites_of, tensors_in
from tests.deploy.test_agreement import LEAST
from tests.deploy.test_agrees import without_flops
from tests.tiny import FEW, method_of, needs_of, tiny

NEEDS = "tests.settings.needs"
TALKING = tiny(data=FEW, public={"share": 0.2, "per_round": 30}, method={"name": f"{NEEDS}:Talking"})
BAD = 1


def other_folder(sites: Sites, tmp_path: Path, client: int) -> Path:
    """The federation.toml of one site, in a folder of its own without public data."""
    folder = tmp_path / f"own-{client}"
    folder.mkdir()
    for name in (FILE_NAME, PUBLIC_KEY_FILE):
        (folder / name).write_bytes((sites.folder / name).read_bytes())
    sites.configs[node(client)]["federation"] = str(folder / FILE_NAME)
    return folder


# -- public data -----------------------------------------------------------------------------------------------
def test_sites_with_public_data_equal_the_simulator(tmp_path: Path) -> None:
    simulated = fedssa.run(TALKING, out=tmp_path / "simulated")
    sites = sites_of(TALKING, tmp_path)
    grid = sites.grid()
    assert list(sites.run(grid)) == without_flops(simulated.records)
    assert sites.faults() == []
    assert [RunDir.open(path).about["public_samples"] for path in (simulated.path, tmp_path / "run")] == [30, 30]
    for asked, reply in grid.seen:
        if asked.metadata.message_type == "train":
            assert list(tensors_in(reply)) == ["outputs"]
            assert list(tensors_in(asked)) in ([], ["outputs"])


def test_a_site_with_other_public_data_says_so_in_one_word(tmp_path: Path) -> None:
    sites = sites_of(TALKING, tmp_path, join_deadline=0.2)
    folder = other_folder(sites, tmp_path, BAD)
    with np.load(tmp_path / "public.npz") as stored:
        np.savez(folder / "public.npz", x=stored["x"] + 1, y=stored["y"])
    grid = sites.grid()
    next(sites.run(grid))
    (said,) = (said_in(reply) for asked, reply in grid.seen if asked.metadata.dst_node_id == node(BAD))
    assert said == {"refusal": "other-public-data"}
    assert sites.faults()[0].reason.endswith("its public data are not those of federation.toml")


def test_a_site_without_its_public_data_fails_and_the_others_go_on(tmp_path: Path) -> None:
    sites = sites_of(TALKING, tmp_path, join_deadline=0.2, deadline=2.0)
    other_folder(sites, tmp_path, BAD)
    records = list(sites.run(sites.grid()))
    assert all(record.num_heard == 3 for record in records)
    assert sites.faults()[0].reason.endswith("its own model or data failed; the reason is in its log")


def test_public_data_are_part_of_what_is_agreed_on(tmp_path: Path) -> None:
    federation = sites_of(TALKING, tmp_path).federation
    text = (tmp_path / FILE_NAME).read_text()
    assert federation.public is not None
    assert federation.public_section is not None
    assert federation.public.digest == federation.public_section.digest
    for change in (("per_round = 30", "per_round = 29"), (federation.public.digest, "0" * 64)):
        assert change[0] in text
        (tmp_path / FILE_NAME).write_text(text.replace(*change))
        assert read_federation(tmp_path).agreement != federation.agreement


@pytest.mark.parametrize(
    ("method", "public", "reason"),
    [
        ("Talking", None, "needs public data"),
        ("Talking", {"digest": "a"}, "public.digest = 'a'"),
        ("Talking", {"digest": "0" * 64, "labels": "mine"}, "public.labels = 'mine'"),
        ("Talking", {"digest": "0" * 64, "per_round": -1}, "public.per_round = -1"),
        ("Talking", {"digest": "0" * 64, "share": 0.1}, "unknown setting public.share"),
        ("Labelled", {"digest": "0" * 64, "labels": "foreign"}, "needs public data with the task's labels, .* 'own'$"),
        ("AnyLabels", {"digest": "0" * 64, "labels": "none"}, "public.labels = 'own' or 'foreign'$"),
    ],
)
def test_public_data_that_do_not_fit_are_told(method: str, public: dict[str, Any] | None, reason: str) -> None:
    table = LEAST | {"method": {"name": f"{NEEDS}:{method}"}} | ({"public": public} if public else {})
    with pytest.raises(SettingsError, match=reason) as caught:
        parse_federation(table)
    assert "\n" not in str(caught.value)


def test_other_inputs_than_the_tasks_are_told(tmp_path: Path) -> None:
    sites = sites_of(TALKING, tmp_path)
    np.savez(tmp_path / "public.npz", x=np.zeros((50, 7), dtype=np.float32), y=np.arange(50) % 10)
    with pytest.raises(DataError, match=r"public\.npz: its samples are 7, the task's are 6"):
        _ = read_federation(sites.folder).public


# -- downlinks that do not fit ---------------------------------------------------------------------------------
def changed(records: RecordDict, name: str, change: Any) -> RecordDict:
    record = records[RECORD]
    assert isinstance(record, ConfigRecord)
    blob = record["tensors"]
    assert isinstance(blob, bytes)
    tensors = tensors_of(blob)
    new = blob_of(tensors | {name: change(tensors.get(name))})
    return RecordDict({RECORD: ConfigRecord({**record, "tensors": new})})


def said_of(records: RecordDict) -> dict[str, Any]:
    record = records[RECORD]
    assert isinstance(record, ConfigRecord)
    fields: dict[str, Any] = json.loads(str(record["message"]))["fields"]
    return fields


@pytest.mark.parametrize(
    ("table", "name", "change", "reason"),
    [
        (tiny(data=FEW), "rows", lambda rows: rows[:, :-1].clone(), r"rows is float32 \[\d, 16\]"),
        (tiny(data=FEW), "rows", lambda rows: rows * float("nan"), "rows holds NaN or infinity"),
        (tiny(data=FEW), "classes", lambda classes: classes.flip(0), "classes is not classes in ascending order"),
        (tiny(data=FEW), "more", lambda _: torch.zeros(1), "more is no field of ClassRows"),
        (TALKING, "outputs", lambda outputs: outputs[1:].clone(), r"outputs is float32 \[29, 10\]"),
        (TALKING, "outputs", lambda outputs: outputs * 2, "outputs has rows that are no probabilities"),
    ],
)
def test_a_downlink_that_does_not_fit_is_refused_and_nothing_is_trained(
    tmp_path: Path, table: dict[str, Any], name: str, change: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    sites = sites_of(table, tmp_path)
    grid = sites.grid()
    running = sites.run(grid)
    while next(running).t < 1:
        pass
    asked = next(asked for asked, _ in reversed(grid.seen) if tensors_in(asked))
    config = sites.configs[asked.metadata.dst_node_id]
    state = Path(str(config["state-dir"]))
    for file in state.glob("*.safetensors"):
        file.unlink()  # as if it had not been asked before
    request = record_in(asked)
    records = RecordDict(
        {RECORD: ConfigRecord(request | {"message": re.sub(r'"heard":\d+', '"heard":-1', request["message"])})}
    )
    key = read_order_key(sites.folder)
    assert "answer" in said_of(respond(signed_order(records, 1, key)[0], config, 1))
    for file in state.glob("*.safetensors"):
        file.unlink()
    assert said_of(respond(signed_order(changed(records, name, change), 1, key)[0], config, 1)) == {
        "refusal": "bad-request"
    }
    assert re.search(reason, caplog.text)
    assert list(state.glob("*.safetensors")) == []


# -- groups ----------------------------------------------------------------------------------------------------
def test_a_hello_says_a_group_if_the_method_has_groups(tmp_path: Path) -> None:
    table = tiny(data=FEW, method={"name": f"{NEEDS}:Grouped"}, rounds={"total": 1, "fraction": 1.0})
    simulated = fedssa.run(table, out=tmp_path / "simulated")
    sites = sites_of(table, tmp_path)
    grid = sites.grid()
    assert list(sites.run(grid)) == without_flops(simulated.records)
    hellos = [said_in(reply) for asked, reply in grid.seen if asked.metadata.message_type == "query"]
    groups = [hello["group"] for hello in sorted(hellos, key=lambda hello: int(hello["id"]))]
    assert all(re.fullmatch(r"[0-9a-f]{16}-[0-9]+", group) for group in groups)
    assert groups[0] == groups[2] != groups[1] == groups[3]  # the architectures in turn
    for asked, reply in grid.seen:
        if asked.metadata.message_type == "train":
            (vector,) = tensors_in(reply).values()
            client = said_in(reply)["answer"]["client"]
            assert vector.shape == (int(groups[client].partition("-")[2]),)


# -- what a site is shown before it joins ----------------------------------------------------------------------
OUTPUTS = r"the server knows the \d+ public samples of a round, so outputs on them are as many questions"
WHOLE, SHARED = "its whole model leaves in each round", "a small model that was trained with this site's samples leaves"
NOTES = {
    **dict.fromkeys(("fedmd", "fccl", "ds-fl", "cronus", "fedgems", "cfd", "fedkt"), (OUTPUTS,)),
    **dict.fromkeys(("feddf", "fed-et"), (WHOLE,)),
    "fedaux": (OUTPUTS, WHOLE),
    "fedkemf": (SHARED,),
    "fedhenn": (r"the server knows the \d+ public samples of a round, so the Gram matrix of its representations",),
    "kt-pfl": (OUTPUTS, "the server's coefficients become a map of whose data are alike"),
    "fsfl": (OUTPUTS, SHARED, "everybody is sent a classifier"),  # with the domains of the simulation
    "standalone-public": (),
}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.needs_public != "no"])
def test_a_preview_says_what_the_server_learns_of_a_site(tmp_path: Path, name: str) -> None:
    table = tiny(data=FEW, method=method_of(name), **needs_of(name))
    notes = preview(str(tmp_path / "site_0.py"), sites_of(table, tmp_path).federation).privacy
    assert len(notes) == len(NOTES[name])
    assert all(re.match(expected, note) for expected, note in zip(NOTES[name], notes, strict=True))


def test_a_preview_says_nothing_of_public_samples_that_a_method_does_not_use(tmp_path: Path) -> None:
    table = tiny(data=FEW, **needs_of("ds-fl"))
    assert preview(str(tmp_path / "site_0.py"), sites_of(table, tmp_path).federation).privacy == []


def test_with_a_domain_for_each_client_a_site_is_told_what_the_classifier_tells() -> None:
    assert FSFL(domains="binary").learnt_besides == ()
    (note,) = FSFL(domains="clients").learnt_besides
    assert note.startswith("everybody is sent a classifier that recognises whose data a representation is of")


def test_a_preview_shows_public_outputs_and_a_group(tmp_path: Path) -> None:
    sites = sites_of(TALKING, tmp_path)
    shown = preview(str(tmp_path / "site_0.py"), sites.federation)
    assert shown.tensors == [("outputs", "float32", "30×10", 1200)]
    public = sites.federation.public
    assert public is not None
    assert shown.public == f"{len(public.samples)} samples, 30 a round, digest {public.digest[:12]} as agreed on"
    assert shown.privacy == []  # that method does not say what travels
    assert "group" not in dict(shown.hello)
    (tmp_path / "grouped").mkdir()
    grouped = sites_of(tiny(data=FEW, method={"name": f"{NEEDS}:Grouped"}), tmp_path / "grouped")
    seen = preview(str(tmp_path / "grouped" / "site_0.py"), grouped.federation)
    hello = dict(seen.hello)
    assert seen.public is None
    assert re.fullmatch(r"[0-9a-f]{16}-[0-9]+", hello["group"])


def test_own_public_labels_are_numbered_by_the_tasks_names(tmp_path: Path) -> None:
    file, x = tmp_path / "public.npz", np.zeros((2, 4), np.float32)
    task, names = Task(3, (4,)), ("cat", "dog", "bird")
    np.savez(file, allow_pickle=False, x=x, y=np.array(["bird", "dog"]))
    assert read_public(file, task, names, "own", 0).samples.y.tolist() == [2, 1]
    assert read_public(file, task, names, "foreign", 0).samples.y.tolist() == [0, 1]
    with pytest.raises(DataError, match="label 'bird' is not one of the class names 0, 1, 2"):
        read_public(file, task, ("0", "1", "2"), "own", 0)
    np.savez(file, allow_pickle=False, x=x, y=np.array([0, 3]))
    with pytest.raises(DataError, match="labels are 0 to 3, and the task's are 0 to 2"):
        read_public(file, task, names, "own", 0)
