"""Sites that agree on no task yet have one all the same: their samples' form, and their labels' classes."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NoReturn

import torch

from fedssa.core.samples import Form, LocalData, form_of, in_words
from fedssa.core.seeds import seeded
from fedssa.data.inputs import standard
from fedssa.errors import DataError, SettingsError
from fedssa.sites.find import Found, naming
from fedssa.sites.samples import glimpse
from fedssa.sites.site import as_site


class _NotKnown:
    """Stands for the task while it is looked for; most sites do not ask it anything."""

    def __getattr__(self, name: str) -> NoReturn:
        raise SettingsError(
            f"its code asks for task.{name} before the task is known; say task.classes and task.input_shape"
        )


def with_task(table: Mapping[str, Any], sites: Mapping[str, Found]) -> dict[str, Any]:
    """Adds to [task] what it does not say and the sites' data do."""
    said = table.get("task", {})
    if not isinstance(said, Mapping) or ("classes" in said and {"input_shape", "inputs"} & said.keys()):
        return dict(table)
    form, num_classes = _found(sites)
    inputs = {} if {"input_shape", "inputs"} & said.keys() else _written(form)
    return {**table, "task": {"classes": num_classes, **inputs, **said}}


def _found(sites: Mapping[str, Found]) -> tuple[Form, int]:
    forms, num_classes = dict[str, Form](), 0
    for name, found in sites.items():
        with naming(name), seeded(0, "start"):  # what its code draws is of no use yet
            site = as_site(found.thing, _NotKnown())  # type: ignore[arg-type]
            for part in LocalData._fields:
                first, labels = glimpse(part, getattr(site, part))
                if len(labels):
                    forms.setdefault(name, _form(first, part))
                    num_classes = max(num_classes, int(labels.max()) + 1)
    return _common(forms), num_classes


def _form(first: Any, part: str) -> Form:
    stored = standard(first, "image", part)
    if isinstance(stored, dict):
        return form_of({name: torch.from_numpy(array) for name, array in stored.items()})
    return form_of(torch.from_numpy(stored))


def _common(forms: Mapping[str, Form]) -> Form:
    if not forms:
        raise DataError("no site has any samples")
    (first, wanted), *others = forms.items()
    for name, form in others:
        if form != wanted:
            raise DataError(
                f"{name}: its samples are {in_words(form)}, those of {first} are {in_words(wanted)}; make them alike"
            )
    return wanted


def _written(form: Form) -> dict[str, Any]:
    if isinstance(form, dict):
        return {"inputs": {name: asdict(one) for name, one in form.items()}}
    return {"input_shape": list(form.shape)} | ({} if form.type == "float32" else {"input_type": form.type})
