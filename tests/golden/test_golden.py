"""Three rounds of every method, preset and option give the golden file's bits; elsewhere its statistics."""

import copy

import pytest

from fedssa.kernels import VARIABLE, resolve
from tests.golden.records import cases, differences, machine, read, run_case

GOLDEN = read()


@pytest.mark.parametrize("label", cases())
def test_the_golden_file_is_unchanged(label: str) -> None:
    written = {name for name, entry in GOLDEN.items() if label in entry}
    assert written, "a new case: python -m tests.golden --write"
    here = machine() in written
    golden = GOLDEN[machine() if here else min(written)]
    found = run_case(cases()[label])
    assert differences(label, golden[label], found, same_machine=here) == []
    if not here:
        print(f"other processor, compare statistics: the golden file has no {label} of {machine()}")


@pytest.mark.parametrize("label", ["standalone", "fedssa", "fedkd"])
def test_a_kernel_that_is_not_the_default_keeps_its_bits(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of linear layers are C's or torch's; `make test-torch` has the one without C."""
    monkeypatch.setenv(VARIABLE, "c-avx512" if resolve("auto") == "c-avx512-linear" else "torch")
    golden = GOLDEN[machine() if machine() in GOLDEN else min(GOLDEN)]
    assert differences(label, golden[label], run_case(cases()[label]), same_machine=machine() in GOLDEN) == []


def test_no_entry_has_a_case_that_is_gone() -> None:
    assert all(entry.keys() <= cases().keys() for entry in GOLDEN.values())


@pytest.mark.parametrize("same_machine", [True, False])
def test_a_difference_is_noticed(same_machine: bool) -> None:
    then = next(iter(GOLDEN.values()))["fedssa"]
    now = copy.deepcopy(then)
    assert differences("fedssa", then, now, same_machine=same_machine) == []
    client = next(iter(now[1]["clients"]))
    now[1]["clients"][client]["loss"] += 0.1
    now[2]["server"] = "0" * 16
    found = differences("fedssa", then, now, same_machine=same_machine)
    assert f"fedssa, round 0, client {client}: loss was" in found[0]
    assert len(found) == (2 if same_machine else 1)
