"""Each rule makes the change it says, and nothing is changed that no test could feel."""

import ast
import textwrap
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, mutants_of, sample
from tests.mutants.parts import PARTS, ROOT, Part, in_turns
from tests.mutants.results import explanations
from tests.mutants.rules import RULES
from tests.mutants.source import Source


def changed(rule: str, text: str) -> list[str]:
    source = Source(text.encode())
    changes = [change for node in source.nodes for change in RULES[rule](source, node)]
    return [(source.text[: c.start] + c.text.encode() + source.text[c.end :]).decode() for c in sorted(changes)]


CASES: list[tuple[str, str, list[str]]] = [
    ("sign", "a + b", ["a - b"]),
    ("sign", "(a) - (b)", ["(a) + (b)"]),
    ("sign", "a * b", ["a / b"]),
    ("sign", "f(-a)", ["f(a)"]),
    ("sign", "a += b", ["a -= b"]),
    ("sign", "(a  # + is plus\n+ b)", ["(a  # + is plus\n- b)"]),
    ("sign", "'μ', a + b", ["'μ', a - b"]),
    ("sign", "[a] + b", []),
    ("factor", "a * w", ["a", "w"]),
    ("factor", "(a + b) * w", ["(a + b)", "w"]),
    ("factor", "a / n", ["a"]),
    ("weights", "torch.ones(n)", ["torch.arange(1.0, n + 1)"]),
    ("weights", "torch.ones_like(counts)", ["(counts)"]),
    ("weights", "[1] * len(x)", ["list(range(1, len(x) + 1))"]),
    ("weights", "torch.ones(n, dtype=torch.bool)", []),
    ("mask", "a & b", ["a", "b", "a | b"]),
    ("mask", "{1: 2} | b", ["{1: 2}", "b"]),
    ("mask", "isinstance(a, int | None)", []),
    ("comparison", "a < b", ["a <= b"]),
    ("comparison", "0 <= a != b", ["0 < a != b", "0 <= a == b"]),
    ("comparison", "a is not b", ["a is b"]),
    ("comparison", "a not  in b", ["a in b"]),
    ("logic", "a and b", ["True and b", "a or b", "a and True"]),
    ("logic", "a or b", ["False or b", "a and b", "a or False"]),
    ("logic", "f(not a)", ["f( a)"]),
    ("branch", "a if c else b", ["a", "b"]),
    ("branch", "[a for a in b if c]", ["[a for a in b if True]"]),
    ("index", "x[0]", ["x[1]"]),
    ("index", "x[-1]", ["x[0]"]),
    ("index", "x[:, 1:n]", ["x[:, 0:n]", "x[:, None:n]", "x[:, 1:None]"]),
    ("reduction", "x.sum(dim=0)", ["x.mean(dim=0)", "x.sum(dim=1)"]),
    ("reduction", "sum(x)", ["max(x)"]),
    ("reduction", "x.argmax()", ["x.argmin()"]),
    ("number", "2 * a", ["1 * a", "3 * a"]),
    ("number", "0.5 * a", ["0.25 * a", "1.0 * a"]),
    ("number", "x[1]", []),
    ("boolean", "f(a, True)", ["f(a, False)"]),
    ("boolean", "zip(a, b, strict=True)", []),
    ("mode", "net.eval()", ["net.train()"]),
    ("mode", "net.train()", ["net.eval()"]),
    ("statement", "check(a)", ["pass"]),
    ("statement", "a[0] = 1", ["pass"]),
    ("statement", "a = 1", []),
    ("statement", "if a:\n    raise E(\n        1)", ["if a:\n    pass"]),
    ("jump", "for a in b:\n    break", ["for a in b:\n    continue"]),
    ("call", "(a + b).detach() * c", ["(a + b) * c"]),
    ("call", "a.clamp(min=1)", ["a"]),
    ("call", "np.exp(a)", []),
    ("argument", "rng(seed, t=t, client=k)", ["rng(seed,  client=k)", "rng(seed, t=t, )"]),
    ("order", "sorted(a, key=f)", ["list(a)"]),
    ("order", "torch.randperm(n, generator=g)", ["torch.arange(n)"]),
    ("order", "rng.permutation(n)", ["np.sort(rng.permutation(n))"]),
    ("order", "rng.choice(n, size, replace=False)", ["range(size)"]),
]


@pytest.mark.parametrize(("rule", "before", "after"), CASES)
def test_a_rule_makes_its_change(rule: str, before: str, after: list[str]) -> None:
    found = changed(rule, before)
    assert sorted(found) == sorted(after)
    for text in found:
        ast.parse(text)


def test_every_rule_is_tried() -> None:
    assert {rule for rule, _, _ in CASES} == RULES.keys()


def mutants(folder: Path, text: str) -> list[Mutant]:
    (folder / "a.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return mutants_of(folder, "a.py")


def test_types_texts_and_invariants_stay(tmp_path: Path) -> None:
    source = '''
        """1 + 1"""
        __all__ = ["a"]
        Leaf = Tensor | int | None
        Kind = Literal["a", 1]
        if TYPE_CHECKING:
            a = 1
        @decorated(1)
        def f(a: Annotated[int, Ge(1)]) -> x[0]:
            """A - b."""
            assert a > 0
            name: Annotated[int, Ge(1)]
            return f"{a + 1} {a[0]}"
    '''
    assert mutants(tmp_path, source) == []


def test_a_refusal_may_vanish_but_keeps_its_text(tmp_path: Path) -> None:
    found = mutants(tmp_path, 'if a:\n    raise E("x" + y[0], 1)\n')
    assert [(m.line, m.before, m.after) for m in found] == [(2, 'raise E("x" + y[0], 1)', "pass")]


def test_two_rules_that_make_the_same_change_make_one_mutant(tmp_path: Path) -> None:
    assert [m.after for m in mutants(tmp_path, "a = b * 1")] == [
        "a = 1",
        "a = b",
        "a = b / 1",
        "a = b * 0",
        "a = b * 2",
    ]
    assert [m.after for m in mutants(tmp_path, "a = [1] * b")].count("a = b") == 1


def some(folder: Path) -> list[Mutant]:
    large, small = "\n".join(f"a = b + {n}" for n in range(1, 31)), "a = b < c\na = b > c\na = b == c"
    (folder / "large.py").write_text(large, encoding="utf-8")
    (folder / "small.py").write_text(small, encoding="utf-8")
    return mutants_of(folder, "large.py") + mutants_of(folder, "small.py")


def test_a_sample_is_the_same_each_time_and_part_of_a_larger_one(tmp_path: Path) -> None:
    every = some(tmp_path)
    ids = [m.id for m in sample(every, 20, seed=0)]
    assert ids == [m.id for m in sample(every, 20, seed=0)] == [m.id for m in sample(every, 40, seed=0)][:20]
    assert ids != [m.id for m in sample(every, 20, seed=1)]
    assert len(sample(every, 1000, seed=0)) == len(every) == len({m.id for m in every})


def test_a_sample_has_all_files_in_proportion_and_all_kinds(tmp_path: Path) -> None:
    every = some(tmp_path)  # 90 of the large file and 3 of the small one
    chosen = sample(every, 62, seed=0)
    assert [m.file for m in chosen].count("small.py") == 2
    kinds = [m.kind for m in chosen if m.file == "large.py"]
    assert kinds.count("sign") == 30  # all there are: the 60 numbers wait for their turn


def test_tests_named_after_the_module_come_first_then_the_fastest() -> None:
    tests = {"tests/test_a.py": 1.0, "tests/test_ops.py": 9.0, "tests/test_b.py": 0.5}
    assert in_turns(tests, "src/ops.py") == [["tests/test_ops.py"], ["tests/test_b.py", "tests/test_a.py"]]
    assert in_turns(tests, "src/other.py") == [["tests/test_b.py", "tests/test_a.py"], ["tests/test_ops.py"]]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_its_sources_and_tests(part: str) -> None:
    assert PARTS[part].source_files(ROOT)
    assert PARTS[part].test_files(ROOT)


def test_a_pattern_without_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.* matches no file"):
        Part(("nowhere/*.py",), ()).source_files(tmp_path)


def test_what_is_explained_is_still_there() -> None:
    known = explanations()
    there = {(m.file, m.before, m.after) for file in {file for file, _, _ in known} for m in mutants_of(ROOT, file)}
    assert set(known) <= there
