"""Runs may be compared if they are equal in everything but the method, with what it must have, and the seed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedssa.report.read.collection import Found
from fedssa.report.read.comparison import MethodRow, compare_methods
from fedssa.report.read.known import augments, known_method
from fedssa.report.read.summary import RunSummary, options_of, section_of
from fedssa.settings.labels import entries_of, label

REFERENCE = "standalone"
USUAL_START = ("header_scale", 1.0)
SECTIONS = ("partition", "models", "local", "rounds")  # what a group has in common, besides its data and version
RUN_OPTIONS = ("target", "evaluate_start")  # those that change what is reported
PLACES = ("dir", "file", "download")  # where data lie on one machine
SCENARIOS = {("cnn-1",): "homo", ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"): "hetero"}
PAPER_CLASSES = {"cifar10": 2, "cifar100": 10}  # a client
PAPER_FRACTIONS = {10: 1.0, 50: 0.2, 100: 0.1}

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """A group is one experiment: methods over seeds."""

    settings: Settings = field(repr=False)
    version: str
    runs: tuple[Found, ...] = field(repr=False)  # one for each method and seed
    members: tuple[Found, ...] = field(repr=False)  # and those that are one of them again
    labels: dict[str, str] = field(repr=False)  # of each run's method, by the run's name
    rows: tuple[MethodRow, ...] = field(repr=False)
    repeated: tuple[tuple[str, str], ...]  # runs left out, since they are another one again

    @cached_property
    def by_label(self) -> dict[str, list[Found]]:
        found: dict[str, list[Found]] = {}
        for run in self.runs:
            found.setdefault(self.labels[run.name], []).append(run)
        return found

    @property
    def seeds(self) -> list[int]:
        return sorted({run.summary.seed for run in self.runs})

    @cached_property
    def reference_runs(self) -> dict[int, RunSummary]:
        return {run.summary.seed: run.summary for run in self.by_label.get(REFERENCE, [])}

    @property
    def paper_cell(self) -> tuple[str, str, int] | None:
        """Returns (scenario, data, N) where the setting is in one of the paper's tables."""
        data, clients = self.settings["data"], self.settings["partition"]["clients"]
        if self.settings.keys() & {"share", "hostile"}:
            return None
        scenario = SCENARIOS.get(tuple(map(label, entries_of(self.settings["models"]))))
        dealt = self.settings["partition"].get("name"), self.settings["partition"].get("classes_per_client")
        if scenario is None or dealt != ("classes", PAPER_CLASSES.get(data)):
            return None
        same_fraction = PAPER_FRACTIONS.get(clients) == self.settings["rounds"].get("fraction")
        return (scenario, data, clients) if same_fraction else None


def group_runs(runs: Sequence[Found]) -> list[Group]:
    """Groups the runs, in the order of the groups' first runs."""
    found = [shared_settings(run) for run in runs]
    free = [settings for run, settings in zip(runs, found, strict=True) if not _own(run)]
    together: dict[str, tuple[Settings, list[Found]]] = {}
    for run, settings in zip(runs, found, strict=True):
        shared = _with_augmented(run, _shared_by_others(settings, _own(run), free), free)
        together.setdefault(json.dumps(shared, sort_keys=True), (shared, []))[1].append(run)
    return [_group(shared, members) for shared, members in together.values()]


def _own(run: Found) -> Settings:
    method = known_method(run.summary.settings)
    return {} if method is None else method.own


def _shared_by_others(settings: Settings, own: Settings, others: Sequence[Settings]) -> Settings:
    """Returns the settings of those beside whom a method with some of its own belongs, if it is plain who they are."""
    if not own:
        return settings
    left = _without(settings, own)
    alike = [other for other in others if _without(other, own) == left]
    return alike[0] if alike and all(other == alike[0] for other in alike) else settings


def _with_augmented(run: Found, settings: Settings, others: Sequence[Settings]) -> Settings:
    """Returns the settings of those on augmented images, if there are any, for a method that always augments them."""
    alike = {**settings, "local": {**settings["local"], "augment": True}}
    return alike if augments(run.summary.settings) and alike in others else settings


def _without(settings: Settings, own: Settings) -> dict[str, Any]:
    left = {key: {k: v for k, v in settings[key].items() if k not in own[key]} for key in own if key in settings}
    return {**settings, **left}


def shared_settings(run: Found) -> dict[str, Any]:
    settings = run.summary.settings
    return {
        "data": label(settings["data"]["name"]),
        "digest": run.summary.run_dir.data_digest,
        **({"splits": settings["data"]["splits"]} if "splits" in settings["data"] else {}),  # who is tested on what
        **({"share": settings["data"]["share"]} if "share" in settings["data"] else {}),
        "version": run.version,
        "run": {key: settings["run"].get(key) for key in RUN_OPTIONS},
        **{section: section_of(run.summary, section) for section in SECTIONS},
        **({"public": _public(run.summary)} if "public" in settings else {}),  # it decides what is dealt to clients
        **({"hostile": settings["hostile"]} if "hostile" in settings else {}),
    }


def _public(run: RunSummary) -> dict[str, Any]:
    """Identifies public data: a slice by its settings, data of their own by their digest, wherever they lie."""
    table = run.settings["public"]
    if table.get("name") == "slice":
        return dict(table)
    return {key: table[key] for key in table if key not in PLACES} | {"digest": run.run_dir.public_digest}


def _group(shared: Settings, members: Sequence[Found]) -> Group:
    labels = method_labels(members)
    kept: dict[tuple[str, int], Found] = {}
    repeated = []
    for run in sorted(members, key=lambda run: run.summary.outcome == "not finished"):  # a whole run before a part
        first = kept.setdefault((labels[run.name], run.summary.seed), run)
        if first is not run:
            repeated.append((run.name, first.name))
    runs = tuple(run for run in members if run in kept.values())
    names = {id(run.summary): labels[run.name] for run in runs}
    rows = compare_methods([run.summary for run in runs], REFERENCE, name=lambda summary: names[id(summary)])
    return Group(shared, shared["version"], runs, tuple(members), labels, tuple(rows), tuple(repeated))


def method_labels(runs: Sequence[Found]) -> dict[str, str]:
    """Returns for each run the method's name, and the options by which it differs from others of that name.

    The usual start is not told: what begins with it keeps the plain name, as the reference does.
    """
    by_method: dict[str, list[Found]] = {}
    for run in runs:
        by_method.setdefault(run.summary.method, []).append(run)
    labels = {}
    for name, members in by_method.items():
        known = [_options(run.summary) for run in members]
        keys = dict.fromkeys(key for options in known for key in options)
        tables = [{key: options.get(key) for key in keys} for options in known]
        differing = list(differing_settings(tables))
        for run, table in zip(members, tables, strict=True):
            options = [f"{key} = {table[key]}" for key in differing if (key, table[key]) != USUAL_START]
            labels[run.name] = ", ".join([name, *options])
    return labels


def _options(run: RunSummary) -> dict[str, Any]:
    """Returns a method's options, with the header's start, and the server's training if the method trains there."""
    trains = any(cost.server_flops is not None for cost in run.costs)
    training = run.settings.get("server", {}) if trains else {}
    start = {"header_scale": run.settings["models"].get("header_scale", 1.0)}
    rule = {"rule": " ".join(map(str, run.settings.get("aggregation", {"rule": "mean"}).values()))}  # and its options
    noise = {"privacy": _noise_words(run.settings.get("privacy", {}))}
    return {**start, **options_of(run), **{f"server.{key}": value for key, value in training.items()}, **rule, **noise}


def _noise_words(privacy: Settings) -> str:
    told = [f"{key} {privacy[key]:g}" for key in ("clip", "sigma") if isinstance(privacy.get(key), (int, float))]
    return " ".join(told) or "none"


def differing_settings(tables: Sequence[Settings]) -> Iterator[str]:
    """Yields keys whose value is not the same in all tables that have them, in the order of first appearance."""
    for key in dict.fromkeys(key for table in tables for key in table):
        if len({json.dumps(table[key], sort_keys=True) for table in tables if key in table}) > 1:
            yield key


def flat(settings: Settings) -> dict[str, Any]:
    """Flattens the sections into `section.key` → value."""
    return {
        f"{section}.{key}" if isinstance(table, Mapping) else section: value
        for section, table in settings.items()
        for key, value in (table.items() if isinstance(table, Mapping) else [(section, table)])
    }


def title(group: Group) -> str:
    partition, rounds = group.settings["partition"], group.settings["rounds"]
    archs = [label(entry) for entry in entries_of(group.settings["models"])]
    named = archs[0] if len(set(archs)) == 1 else ", ".join(archs) if len(archs) < 4 else f"{archs[0]} … {archs[-1]}"
    parts = [_data_words(group), f"{partition['clients']:,} clients with {named}"]
    if partition.get("name") == "classes" and "classes_per_client" in partition:
        parts.append(f"{partition['classes_per_client']} classes each")
    elif partition.get("name") == "dirichlet" and "gamma" in partition:
        parts.append(f"Dirichlet γ = {partition['gamma']}")
    elif partition.get("name") == "column" and "column" in partition:
        parts.append(f"by {partition['column']}")
    else:
        parts.append(str(partition.get("name", "")))
    if isinstance(rounds.get("fraction"), (int, float)):
        parts.append(f"{100 * rounds['fraction']:.3g} % a round")
    return ", ".join(filter(None, [*parts, *_trained_words(group), *_public_words(group), *_hostile_words(group)]))


def _data_words(group: Group) -> str:
    name, share = group.settings["data"].replace("cifar", "CIFAR-"), group.settings.get("share")
    return f"{100 * share:.3g} % of {name}" if isinstance(share, (int, float)) else str(name)


def _trained_words(group: Group) -> list[str]:
    total, local = group.settings["rounds"]["total"], group.settings["local"]
    epochs, images = local["epochs"], " on augmented images" if local.get("augment") else ""
    return [f"{total} round{'s' * (total != 1)} of {epochs} epoch{'s' * (epochs != 1)}{images}"]


def _public_words(group: Group) -> list[str]:
    public = group.settings.get("public")
    if not public:
        return []
    share, size = public.get("share"), public.get("size")
    amount = f"{100 * share:.3g} % of the data" if isinstance(share, (int, float)) else str(public.get("name", "data"))
    return [f"public: {amount}" + (f" ({size:,} samples)" if isinstance(size, int) else "")]


def _hostile_words(group: Group) -> list[str]:
    hostile = group.settings.get("hostile")
    if not hostile:
        return []
    who, attack = hostile.get("clients"), hostile.get("attack")
    amount = f"{100 * who:.3g} %" if isinstance(who, (int, float)) else f"{len(who)} clients"
    return [f"no attack, without {amount}" if attack == "none" else f"{amount} hostile ({attack})"]


def subtitle(group: Group) -> str:
    local = group.settings["local"]
    chosen = local.get("optimizer", "sgd")
    optimiser = chosen["name"] if isinstance(chosen, Mapping) else chosen
    parts = [] if optimiser == "sgd" else [optimiser]
    parts += [f"{word} {local[key]}" for key, word in (("batch_size", "batch"), ("lr", "lr")) if key in local]
    if per_round := group.settings.get("public", {}).get("per_round"):
        parts.append(f"{per_round} public samples a round")
    elif group.settings.get("public"):
        parts.append("all public samples in every round")
    return " · ".join([*parts, group.version])
