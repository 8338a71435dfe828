"""The fused operation in C against torch: in float64 for its precision, in exact arithmetic for its decisions."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import conv2d, cross_entropy

from fedssa.core.seeds import one_thread
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors
from fedssa.kernels import Kernel, conv_relu_pool, in_c, using
from fedssa.models import MODELS, build
from tests.conftest import copies, same_bits

HERE: list[Kernel] = [*in_c.LEVELS[: in_c.best_level() + 1]]
NEAR = 1e-3  # rounding decides no maximum that is won by more, at the sizes of these tests

#        batch, channels in, height, width, channels out, rows, columns
SHAPES = {
    "the paper's first": (8, 3, 32, 32, 16, 5, 5),
    "the paper's second": (8, 16, 14, 14, 32, 5, 5),
    "a batch of one": (1, 3, 16, 16, 16, 5, 5),
    "odd sizes": (3, 3, 15, 17, 16, 5, 5),
    "odd and even": (2, 2, 12, 9, 8, 4, 3),
    "grey": (2, 1, 28, 28, 16, 5, 5),
    "kernel 1": (2, 4, 6, 7, 8, 1, 1),
    "kernel 1, one channel": (2, 1, 5, 4, 1, 1, 1),
    "kernel 2": (2, 3, 8, 8, 8, 2, 2),
    "kernel 3": (2, 3, 9, 8, 24, 3, 3),
    "kernel 4": (2, 5, 10, 11, 8, 4, 4),
    "kernel 7": (2, 3, 13, 12, 16, 7, 7),
    "a wide kernel": (2, 3, 8, 16, 9, 1, 7),
    "a tall kernel": (2, 3, 16, 8, 9, 7, 2),
    "one channel out": (2, 3, 12, 12, 1, 5, 5),
    "5 channels": (2, 5, 12, 12, 5, 3, 5),
    "17 channels": (2, 17, 9, 9, 17, 3, 3),
    "33 channels": (2, 33, 8, 8, 33, 3, 3),
    "one cell": (3, 3, 6, 6, 16, 5, 5),
    "one cell of a 7 × 3 kernel": (3, 7, 8, 4, 3, 7, 3),
    "runs of many vectors": (1, 32, 6, 12, 8, 3, 9),
}
Shape = tuple[int, ...]
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@pytest.fixture(params=HERE, autouse=True)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything here is asked of every variant of the C code that this machine runs."""
    monkeypatch.setattr(in_c, "best_level", lambda: in_c.LEVELS.index(request.param))
    with one_thread(), using("c"):
        yield


class Problem(NamedTuple):
    x: Tensor
    weight: Tensor
    bias: Tensor
    grad: Tensor  # of the output


class Result(NamedTuple):
    out: Tensor
    grad_x: Tensor
    grad_weight: Tensor
    grad_bias: Tensor


def size_of(shape: Shape) -> tuple[int, int, int, int]:
    num, _, height, width, channels_out, rows, columns = shape
    return num, channels_out, (height - rows + 1) // 2, (width - columns + 1) // 2


def solved(problem: Problem, kernel: Kernel = "c") -> Result:
    x, weight, bias = (t.detach().requires_grad_() for t in problem[:3])
    with using(kernel):
        out = conv_relu_pool(x, weight, bias)
    return Result(out.detach(), *torch.autograd.grad(out, [x, weight, bias], problem.grad))


def in_double(problem: Problem) -> Problem:
    return Problem(*(t.double() for t in problem))


def margins(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """By how much each cell's winner is ahead, of its rivals and of 0."""
    y = conv2d(x, weight, bias)
    cells = y[..., : y.shape[2] // 2 * 2, : y.shape[3] // 2 * 2].unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    best, second = cells.topk(2, dim=-1).values.unbind(dim=-1)
    return torch.minimum(best - second, best.abs())


def random_problem(shape: Shape, seed: int = 0) -> Problem:
    """No gradient comes from a cell whose winner depends on rounding."""
    num, channels, height, width, channels_out, rows, columns = shape
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(num, channels, height, width, generator=rng)
    weight = torch.randn(channels_out, channels, rows, columns, generator=rng) / (channels * rows * columns) ** 0.5
    bias = torch.rand(channels_out, generator=rng) / 4
    clear = margins(x.double(), weight.double(), bias.double()) > NEAR
    return Problem(x, weight, bias, torch.randn(size_of(shape), generator=rng) * clear)


def whole_numbers(shape: Shape, seed: int, largest: int) -> Problem:
    """Every sum is exact, in whatever order; with a small `largest` there are ties everywhere."""
    num, channels, height, width, channels_out, rows, columns = shape
    rng = torch.Generator().manual_seed(seed)
    sizes = ((num, channels, height, width), (channels_out, channels, rows, columns), (channels_out,), size_of(shape))
    return Problem(*(torch.randint(-largest, largest + 1, size, generator=rng).float() for size in sizes))


def error(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


# -- precision -------------------------------------------------------------------------------------------------
@each_shape
def test_as_precise_as_torch_in_float32(shape: Shape) -> None:
    problem = random_problem(shape)
    exact, theirs, ours = solved(in_double(problem), "torch"), solved(problem, "torch"), solved(problem)
    assert (exact.out > 0).any()
    for name in Result._fields:
        a, b, true = (getattr(result, name) for result in (ours, theirs, exact))
        assert a.shape == true.shape
        assert a.dtype == torch.float32
        assert error(a, true) <= 2 * error(b, true) + 2e-7, name


@each_shape
def test_exact_where_arithmetic_is(shape: Shape) -> None:
    problem = whole_numbers(shape, seed=1, largest=9)
    for ours, theirs in zip(solved(problem), solved(in_double(problem), "torch"), strict=True):
        assert torch.equal(ours.double(), theirs)


@st.composite
def small_shapes(draw: st.DrawFn) -> Shape:
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    height, width = rows + draw(st.integers(1, 8)), columns + draw(st.integers(1, 8))
    return (draw(st.integers(1, 3)), draw(st.integers(1, 9)), height, width, draw(st.integers(1, 20)), rows, columns)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(small_shapes(), st.integers(0, 2**32), st.sampled_from([1, 2, 30]))
def test_any_small_shape(shape: Shape, seed: int, largest: int) -> None:
    problem = whole_numbers(shape, seed, largest)
    for ours, theirs in zip(solved(problem), solved(problem, "torch"), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("variant", HERE[2:], indirect=True)  # skipped where the processor has no AVX-512
@each_shape
def test_wider_vectors_change_no_bit(shape: Shape) -> None:
    problem = random_problem((5, *shape[1:]))
    assert same_bits(solved(problem)._asdict(), solved(problem, "c-avx2")._asdict())


# -- gradients -------------------------------------------------------------------------------------------------
EPS = 2**-6


def sixteenths(shape: Shape) -> Problem:
    """Small numbers in sixteenths, no winner of which changes within EPS."""
    for seed in count():
        problem = Problem(*(t / 16 for t in whole_numbers(shape, seed, largest=16)))
        if margins(*problem[:3]).min() > 4 * EPS:
            return problem
    raise AssertionError


@pytest.mark.filterwarnings("ignore:Input #.* requires gradient and is not a double precision")
@pytest.mark.parametrize(
    "shape", [(2, 1, 4, 4, 2, 1, 1), (1, 2, 5, 6, 3, 2, 2), (1, 3, 6, 6, 9, 5, 5), (1, 1, 4, 7, 2, 3, 2)], ids=str
)
def test_gradients_are_those_of_the_function(shape: Shape) -> None:
    """In exact arithmetic: a difference of a piecewise linear function is its derivative."""
    inputs = [t.requires_grad_() for t in sixteenths(shape)[:3]]
    assert torch.autograd.gradcheck(conv_relu_pool, inputs, eps=EPS, atol=1e-5, rtol=1e-5)


def test_a_gradient_of_the_input_only_where_it_is_needed() -> None:
    problem = random_problem((2, 3, 12, 12, 16, 5, 5))
    weight, bias = problem.weight.clone().requires_grad_(), problem.bias.clone().requires_grad_()
    conv_relu_pool(problem.x, weight, bias).backward(problem.grad)  # type: ignore[no-untyped-call]
    whole = solved(problem)
    assert weight.grad is not None
    assert bias.grad is not None
    assert torch.equal(weight.grad, whole.grad_weight)
    assert torch.equal(bias.grad, whole.grad_bias)
    x = problem.x.clone().requires_grad_()
    conv_relu_pool(x, problem.weight, problem.bias).backward(problem.grad)  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad, whole.grad_x)


def test_without_gradients_the_same_bits() -> None:
    problem = random_problem((2, 3, 12, 12, 16, 5, 5))
    expected = solved(problem).out
    with torch.no_grad():
        assert torch.equal(conv_relu_pool(problem.x, problem.weight.requires_grad_(), problem.bias), expected)
    assert torch.equal(conv_relu_pool(*(t.detach() for t in problem[:3])), expected)


def test_what_was_changed_before_backward_is_not_used() -> None:
    problem = random_problem((2, 3, 12, 12, 16, 5, 5))
    x = problem.x.contiguous(memory_format=torch.channels_last)  # taken as it is, without a copy
    out = conv_relu_pool(x, problem.weight.requires_grad_(), problem.bias)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward(problem.grad)  # type: ignore[no-untyped-call]


# -- layouts and batches ---------------------------------------------------------------------------------------
def strided(x: Tensor) -> Tensor:
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    wide[..., ::2] = x
    return wide[..., ::2]


def transposed(x: Tensor) -> Tensor:
    return x.transpose(2, 3).contiguous().transpose(2, 3)


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def strided_channels_last(x: Tensor) -> Tensor:
    return strided(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def part_of_a_batch(x: Tensor) -> Tensor:
    return torch.cat([torch.full_like(x, float("nan")), x])[len(x) :]


def backwards(x: Tensor) -> Tensor:
    return x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)


LAYOUTS = [strided, transposed, channels_last, strided_channels_last, part_of_a_batch, backwards]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 11, 12, 10, 5, 5), (2, 1, 7, 6, 1, 3, 2), (1, 4, 5, 5, 8, 1, 1)], ids=str)
def test_memory_layout_changes_no_bit(layout: Callable[[Tensor], Tensor], shape: Shape) -> None:
    problem = random_problem(shape)
    other = Problem(layout(problem.x), layout(problem.weight), problem.bias, layout(problem.grad))
    assert torch.equal(other.x, problem.x)
    assert same_bits(solved(other)._asdict(), solved(problem)._asdict())
    bias = strided(problem.bias[None])[0]
    assert same_bits(solved(problem._replace(bias=bias))._asdict(), solved(problem)._asdict())


def test_an_expanded_gradient_is_taken_as_it_is_meant() -> None:
    problem = random_problem((2, 3, 12, 12, 16, 5, 5))
    ones = problem._replace(grad=torch.ones(1).expand_as(problem.grad))  # what sum() sends back
    assert same_bits(solved(ones)._asdict(), solved(problem._replace(grad=torch.ones_like(problem.grad)))._asdict())


@each_shape
def test_an_image_does_not_depend_on_its_batch(shape: Shape) -> None:
    many = random_problem((5, *shape[1:]))
    whole = solved(many)
    for n in range(5):
        alone = solved(Problem(many.x[n : n + 1], many.weight, many.bias, many.grad[n : n + 1]))
        assert torch.equal(whole.out[n], alone.out[0])
        assert torch.equal(whole.grad_x[n], alone.grad_x[0])


# -- decisions -------------------------------------------------------------------------------------------------
@each_shape
def test_ties_go_where_torch_sends_them(shape: Shape) -> None:
    problem = whole_numbers((20, *shape[1:]), seed=2, largest=1)
    assert (margins(*problem[:3]) == 0).any()
    for ours, theirs in zip(solved(problem), solved(problem, "torch"), strict=True):
        assert torch.equal(ours, theirs)


def test_ties_at_zero_stop_the_gradient() -> None:
    """Four outputs of 0 each, then four of 1: the first of these has all of the gradient."""
    x, weight = torch.ones(1, 1, 2, 2), torch.ones(2, 1, 1, 1)
    result = solved(Problem(x, weight, torch.tensor([-1.0, 0.0]), torch.tensor([5.0, 7.0]).view(1, 2, 1, 1)))
    assert result.out.flatten().tolist() == [0, 1]
    assert result.grad_x.flatten().tolist() == [7, 0, 0, 0]
    assert result.grad_weight.flatten().tolist() == [0, 7]
    assert result.grad_bias.tolist() == [0, 7]


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_what_is_no_number_comes_out_where_torchs_does(special: float, position: int) -> None:
    problem = whole_numbers((3, 2, 10, 9, 11, 3, 2), seed=3, largest=2)  # weights of 0, too: 0 · inf is NaN
    problem.x[1, 0, 4 + position // 2, 4 + position % 2] = special
    ours, theirs = solved(problem).out, solved(in_double(problem), "torch").out
    assert not torch.isfinite(theirs).all()
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(nan=-1.0, posinf=-2.0).double(), theirs.nan_to_num(nan=-1.0, posinf=-2.0))


@pytest.mark.parametrize("pair", [(0, 1), (0, 3), (1, 2), (2, 3)], ids=str)
def test_of_two_nans_the_last_has_the_gradient(pair: tuple[int, int]) -> None:
    x = torch.ones(1, 1, 2, 2)
    for position in pair:
        x[0, 0, position // 2, position % 2] = float("nan")
    problem = Problem(x, torch.ones(1, 1, 1, 1), torch.zeros(1), torch.ones(1, 1, 1, 1))
    ours, theirs = solved(problem), solved(problem, "torch")
    assert ours.out.isnan().all()
    assert torch.equal(ours.grad_x, theirs.grad_x)
    assert int(ours.grad_x.flatten().argmax()) == pair[1]


def test_infinity_has_the_gradient() -> None:
    x = torch.tensor([1.0, float("inf"), -float("inf"), float("inf")]).view(1, 1, 2, 2)
    problem = Problem(x, torch.ones(1, 1, 1, 1), torch.zeros(1), torch.ones(1, 1, 1, 1))
    assert solved(problem).grad_x.flatten().tolist() == [0, 1, 0, 0]


def test_negative_zero_is_zero_and_stopped() -> None:
    x, weight = torch.full((1, 1, 2, 2), -0.0), torch.ones(1, 1, 1, 1)
    result = solved(Problem(x, weight, torch.tensor([-0.0]), torch.ones(1, 1, 1, 1)))
    assert result.out.item() == 0
    assert not result.grad_x.any()
    assert not result.grad_bias.any()


def test_subnormal_numbers_are_kept() -> None:
    tiny = 2.0**-140
    x, weight = torch.full((1, 1, 2, 2), tiny), torch.ones(1, 1, 1, 1)
    result = solved(Problem(x, weight, torch.zeros(1), torch.full((1, 1, 1, 1), tiny)))
    assert result.out.item() == tiny
    assert result.grad_x.flatten().tolist() == [tiny, 0, 0, 0]


# -- what is refused -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", ["c", "torch"])
def test_an_empty_batch_is_refused(kernel: Kernel) -> None:
    with using(kernel), pytest.raises(ValueError, match="an empty batch"):
        conv_relu_pool(torch.zeros(0, 3, 8, 8), torch.zeros(4, 3, 5, 5), torch.zeros(4))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ((3, 4, 8), r"images of 3×4×8 do not fit a kernel of 3×5×5"),
        ((3, 8, 4), r"images of 3×8×4 do not fit"),
        ((3, 5, 8), r"images of 3×5×8 do not fit"),  # one row of outputs: nothing to pool
        ((2, 8, 8), r"images of 2×8×8 do not fit a kernel of 3×5×5"),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_images_that_do_not_fit_are_refused(image: tuple[int, ...], message: str, grad: bool) -> None:
    x, weight, bias = torch.zeros(2, *image), torch.zeros(4, 3, 5, 5, requires_grad=grad), torch.zeros(4)
    with pytest.raises(ValueError, match=message):
        conv_relu_pool(x, weight, bias)
    with using("torch"), pytest.raises(RuntimeError):
        conv_relu_pool(x, weight, bias)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("grad", [False, True])
def test_a_bias_of_another_size_is_refused(size: int, grad: bool) -> None:
    x, weight = torch.zeros(2, 3, 8, 8), torch.zeros(4, 3, 5, 5, requires_grad=grad)
    with pytest.raises(ValueError, match=rf"a bias of {size} for 4 channels"):
        conv_relu_pool(x, weight, torch.zeros(size))


def test_float64_goes_to_torch() -> None:
    problem = in_double(random_problem((2, 3, 12, 12, 16, 5, 5)))
    assert same_bits(solved(problem, "c")._asdict(), solved(problem, "torch")._asdict())
    assert conv_relu_pool(*problem[:3]).dtype == torch.float64


def test_there_is_no_second_derivative_in_c() -> None:
    problem = random_problem((2, 3, 12, 12, 16, 5, 5))
    weight = problem.weight.requires_grad_()
    out = conv_relu_pool(problem.x, weight, problem.bias).square().sum()
    (grad,) = torch.autograd.grad(out, [weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()  # type: ignore[no-untyped-call]


# -- company ---------------------------------------------------------------------------------------------------
def test_threads_do_not_disturb_one_another() -> None:
    """C runs without Python's lock."""
    problems = [random_problem((4, 3, 32, 32, 16, 5, 5), seed) for seed in range(8)]
    alone = [solved(problem)._asdict() for problem in problems]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda problem: solved(problem)._asdict(), problems))
    assert all(same_bits(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_tracer_sees_what_is_computed() -> None:
    """To export a trained model, say."""
    problem, other = (random_problem((2, 3, 12, 12, 16, 5, 5), seed)[:3] for seed in (0, 1))
    traced = torch.jit.trace(conv_relu_pool, problem, check_trace=False)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(traced(*other), conv_relu_pool(*other))


def test_what_c_cannot_count_is_left_to_torch() -> None:
    """Views of one number, which take no memory."""
    one = torch.zeros(1)
    image, kernel, bias = (one.expand(shape) for shape in ((1, 1, 2**15, 2**13), (1, 1, 5, 5), (1,)))
    assert in_c.can_convolve(image, kernel, bias)
    assert not in_c.can_convolve(one.expand(1, 1, 2**15, 2**14), kernel, bias)
    assert not in_c.can_convolve(image, one.expand(2**23, 1, 4, 4), bias)


def test_tensors_without_memory_are_not_touched() -> None:
    problem = random_problem((2, 3, 12, 12, 16, 5, 5))
    with FakeTensorMode() as mode:
        x, weight, bias = (mode.from_tensor(t) for t in problem[:3])
        assert conv_relu_pool(x, weight, bias).shape == problem.grad.shape
    assert conv_relu_pool(*(t.to("meta") for t in problem[:3])).shape == problem.grad.shape


def test_torchs_function_transforms_work() -> None:
    x, weight, bias, grad = random_problem((3, 3, 12, 12, 16, 5, 5))
    each = torch.func.vmap(lambda image: conv_relu_pool(image[None], weight, bias)[0])(x)
    torch.testing.assert_close(each, conv_relu_pool(x, weight, bias))
    by_function = torch.func.grad(lambda w: (conv_relu_pool(x, w, bias) * grad).sum())(weight)
    torch.testing.assert_close(by_function, solved(Problem(x, weight, bias, grad)).grad_weight)


# -- training --------------------------------------------------------------------------------------------------
STEPS, BATCH, LR = 12, 16, 0.01


def weights(net: nn.Module) -> Tensors:
    return {name: p.detach().double() for name, p in net.named_parameters()}


def update(name: str, kernel: Kernel, *, dtype: torch.dtype = torch.float32, lr: float = LR) -> Tensors:
    """What a few steps of SGD add to each of a model's weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build(name, MODELS[name], Task(10, (3, 32, 32))).to(dtype)
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x, y = torch.rand(STEPS, BATCH, 3, 32, 32) * 2 - 1, torch.randint(10, (STEPS, BATCH))
    before = copies(weights(net))
    sgd = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    with using(kernel):
        for images, labels in zip(x, y, strict=True):
            sgd.zero_grad()
            cross_entropy(net(images.to(dtype)), labels).backward()  # type: ignore[no-untyped-call]
            sgd.step()
    return {name: after - before[name] for name, after in weights(net).items()}


@cache
def update_of_torch(name: str, dtype: torch.dtype) -> Tensors:
    """The same for all variants of the C code."""
    return update(name, "torch", dtype=dtype)


@pytest.mark.parametrize("name", ["cnn-1", "cnn-2"])
def test_training_is_as_close_to_float64_as_with_torch(name: str) -> None:
    exact, theirs = (update_of_torch(name, dtype) for dtype in (torch.float64, torch.float32))
    ours, faster = update(name, "c"), update(name, "c", lr=1.01 * LR)
    for tensor, true in exact.items():
        bound = 3 * error(theirs[tensor], true) + 2e-4  # about what one winner that rounding decides makes
        assert error(ours[tensor], true) <= bound < 1e-3
        assert error(faster[tensor], true) > bound  # a learning rate 1 % larger would be seen
