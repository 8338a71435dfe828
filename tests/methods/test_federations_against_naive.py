"""Whole federations against second implementations that were written from the method cards alone.

FedRep, FedGH, DS-FL, FedTGP, FedGen, FedGKT, FedMRL, FedMD, KT-pFL, Cronus and FedDF: `beside_naive` says how.
"""

from dataclasses import replace

import pytest

from fedssa.methods import FedGH
from tests.methods import (
    feddf_beside_naive,
    fedgen_beside_naive,
    public_beside_naive,
    servers_beside_naive,
    witnesses_beside_naive,
)
from tests.methods.beside_naive import (
    COHORTS,
    LABELS,
    Case,
    all_move_with_the_rate,
    dead_units,
    differences,
    group_of,
    is_large,
    settings_without_effect,
)

OLDER = witnesses_beside_naive.CASES | servers_beside_naive.CASES | fedgen_beside_naive.CASES
CASES = OLDER | public_beside_naive.CASES | feddf_beside_naive.CASES


def test_the_cohorts_have_a_late_client_an_absence_and_rounds_without_a_group_and_a_class() -> None:
    assert all(len(present) == 3 for present in COHORTS)
    late = set(COHORTS[2]) - set(COHORTS[0]) - set(COHORTS[1])
    back = (set(COHORTS[0]) & set(COHORTS[2])) - set(COHORTS[1])
    groups = [{group_of(k) for k in present} for present in COHORTS]
    assert late
    assert back
    assert groups[0] == {"red", "blue"}
    assert {"red"} in groups[1:]
    first, second, third = ({s for k in present for s in LABELS[k]} for present in COHORTS)
    assert second - first  # a class that nobody knows yet
    assert second - third  # a known class without an upload


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_weights_uploads_and_server_agree_with_the_naive_implementation(case: Case) -> None:
    assert differences(case) == {}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_percent_more_learning_rate_is_told_apart(case: Case) -> None:
    assert all_move_with_the_rate(case)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.settings])
def test_every_setting_is_told_apart_from_its_default(name: str) -> None:
    assert settings_without_effect(CASES[name]) == []


def test_shuffled_batches_at_fedghs_server_are_told_apart_from_the_order() -> None:
    assert is_large(differences(replace(CASES["fedgh"], method=FedGH(in_order=False))))


LIVELY = ["fedrep", "fedgh", "ds-fl", "fedtgp-nearest", "fedgen", "fedgkt", "fedmrl", "fedmrl-narrow"]


@pytest.mark.parametrize("name", [*LIVELY, "fedmd", "kt-pfl", "cronus", "feddf"])
def test_no_unit_is_dead_so_that_every_weight_is_compared_in_motion(name: str) -> None:
    assert dead_units(CASES[name]) == []
