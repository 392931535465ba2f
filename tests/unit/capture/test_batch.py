"""What grows with the batch, and losses that are no means of samples."""

import re

import pytest

from nest.capture.batch import at_batch, check_loss, normalizes_batch, random_notes
from nest.errors import InvalidProblemError
from tests.captured import Writer, captures, mlp

REMEDY = (
    "let the loss be a mean over samples, or state with --split-loss that every "
    "micro-batch computes it apart"
)


def written(*steps):
    """Return captures of operations in a row, the last of which makes the loss.

    A step is function, code, shape without the batch (``None`` for ``b`` rows), and
    perhaps further tensors or ``False`` for one without a gradient.
    """

    def write(writer):
        name = "x"
        for function, code, shape, *rest in steps:
            gradient = False not in rest
            beside = [x for x in rest if isinstance(x, str)]
            sizes = tuple(writer.batch if x is None else x for x in shape)
            code = code.replace("BATCH", str(writer.batch))
            name = writer.run(function, (name, *beside), sizes, code, gradient=gradient)
        return name

    return captures(write)


MEAN = ("torch.Tensor.mean", "{0}.mean()", ())
SUM = ("torch.Tensor.sum", "{0}.sum()", ())
EXP = ("torch.Tensor.exp", "{0}.exp()", (4, 8))


def test_a_capture_at_another_batch_size():
    def write(writer):
        return writer.loss(mlp(writer, "block", "x"))

    made = captures(write)
    other = Writer(7)
    expected = other.capture(write(other))
    assert at_batch(made.small, made.large, 7) == expected
    assert at_batch(made.small, made.large, 2) == made.small


def test_other_operations_for_another_batch_size():
    small = written(MEAN).small
    large = written(SUM).large
    with pytest.raises(
        InvalidProblemError,
        match=re.escape(
            "made: the module itself: expected the same operations for every batch "
            "size, got others for 4 samples than for 2, from torch.Tensor.mean on; let "
            "nothing but shapes depend on the batch, and nothing on random numbers of "
            "Python"
        ),
    ):
        at_batch(small, large, 1)


@pytest.mark.parametrize(
    "steps",
    [
        (MEAN,),
        (MEAN, ("torch.Tensor.mul", "{0} * 0.5", ())),
        (SUM, ("torch.Tensor.div", "{0} / BATCH", ())),
        (("torch.Tensor.sum", "{0}.sum(1)", (None, 8)), MEAN),
        (("torch.Tensor.mean", "{0}.mean(0)", (4, 8)), SUM),
        (MEAN, ("torch.stack", "torch.stack([{0}, {0}])", (2,)), MEAN),
        (("torch.nn.functional.triplet_margin_loss", "f({0}, {0}, {0})", ()),),
        (("torch.Tensor.topk", "{0}.topk(2)", (None, 4, 2)), MEAN),
        (("torch.Tensor.softmax", "{0}.softmax(dim=1)", (None, 4, 8)), MEAN),
    ],
)
def test_means(steps):
    made = written(*steps)
    check_loss(made.small, made.large)


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        ((SUM,), "sum, which sums over the samples (scalar)"),
        (
            (SUM, ("torch.Tensor.div", "{0} / 8", ())),
            "div, which sums over the samples (scalar)",
        ),
        (
            (("torch.Tensor.matmul", "{0} @ {0}.T", (None, None)), MEAN),
            "matmul, which compares the samples of a batch with one another (2×2)",
        ),
        (
            (("torch.Tensor.sum", "{0}.sum(0)", (4, 8)), MEAN),
            "sum, which takes a figure over the batch (4×8)",
        ),
        (
            (
                ("torch.Tensor.mean", "{0}.mean(0)", (4, 8)),
                ("torch.Tensor.sub", "{1} - {0}", (None, 4, 8), "x"),
                MEAN,
            ),
            "sub, which uses means over the whole batch (2×4×8)",
        ),
        (
            (("torch.Tensor.mean", "{0}.mean(0)", (4, 8)), EXP),
            "exp, which is no mean of its samples' values (4×8)",
        ),
        (
            (MEAN, ("torch.Tensor.div", "{0} / BATCH", ())),
            "div, which multiplies by a number of the batch (scalar)",
        ),
        (
            (("torch.nn.functional.ctc_loss", "f({0}, reduction='sum')", ()),),
            "ctc_loss, which sums over the samples (scalar)",
        ),
        (
            (("torch.Tensor.topk", "{0}.topk(2, dim=0)", (None, 4, 8)), MEAN),
            "topk, which compares the samples of a batch with one another (2×4×8)",
        ),
        (
            (("torch.softmax", "torch.softmax({0}, -3)", (None, 4, 8)), MEAN),
            "softmax, which compares the samples of a batch with one another (2×4×8)",
        ),
        (
            (MEAN, ("torch.Tensor.exp", "{0}.exp()", ())),
            "exp, which is no mean of its samples' values (scalar)",
        ),
    ],
)
def test_losses_over_the_batch(steps, what):
    made = written(*steps)
    with pytest.raises(InvalidProblemError) as error:
        check_loss(made.small, made.large)
    assert str(error.value) == (
        f"made: the module itself: expected a loss that is the mean of its samples' "
        f"losses, got {what}; {REMEDY}"
    )


def test_a_mean_over_unlike_counts():
    """The sum over samples, divided by how many of them a mask leaves."""

    def write(writer):
        count = writer.run("torch.Tensor.sum", ("x",), (), "{0}.sum()", gradient=False)
        total = writer.run("torch.Tensor.sum", ("x",), (), "{0}.sum()")
        return writer.run("torch.Tensor.div", (total, count), (), "{0} / {1}")

    made = captures(write)
    with pytest.raises(InvalidProblemError, match="uses a figure of the whole batch"):
        check_loss(made.small, made.large)


@pytest.mark.parametrize(
    ("function", "code", "expected"),
    [
        ("batch_norm", "f({0}, {1}, {2}, {3}, {4}, True, 0.1, 1e-05)", True),
        ("batch_norm", "f({0}, {1}, {2}, {3}, {4}, False, 0.1, 1e-05)", False),
        ("batch_norm", "f({0}, None, None, training=True)", True),
        ("batch_norm", "f({0}, {1}, {2}, training=False)", False),
        ("layer_norm", "f({0}, (8,))", False),
    ],
)
def test_statistics_of_the_batch(function, code, expected):
    writer = Writer(2)
    writer.run(f"torch.nn.functional.{function}", ("x",), (2, 4, 8), code)
    assert normalizes_batch(writer.operations[0]) is expected


def test_other_axes_for_another_batch_size():
    small = written(("torch.Tensor.squeeze", "{0}.squeeze()", (None, 8)), MEAN).small
    large = written(("torch.Tensor.squeeze", "{0}.squeeze()", (8,)), MEAN).large
    with pytest.raises(InvalidProblemError, match="the first axis of inputs and acti"):
        check_loss(small, large)


@pytest.mark.parametrize(
    ("function", "code", "is_random"),
    [
        ("torch.nn.functional.dropout", "f.dropout({0}, 0.1, True, False)", True),
        ("torch.nn.functional.dropout", "f.dropout({0}, 0.0, True, False)", False),
        ("torch.nn.functional.dropout", "f.dropout({0}, 0.1, False, False)", False),
        ("torch.randn_like", "torch.randn_like({0})", True),
        ("torch.Tensor.uniform_", "{0}.uniform_()", True),
        ("torch.nn.functional.normalize", "f.normalize({0})", False),
        ("torch.relu", "torch.relu({0})", False),
    ],
)
def test_random_numbers(function, code, is_random):
    made = written((function, code, (None, 8)), MEAN)
    assert bool([*random_notes(made.small)]) == is_random


PLACES = ("torch.Tensor.cumsum", "{0}.cumsum(0)", (None, 4, 8), False)
WEIGHTED = "torch.nn.functional.cross_entropy"


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        (
            (PLACES, ("torch.Tensor.mul", "{1} * {0}", (None, 4, 8), "x"), MEAN),
            "mul, which uses places of samples in the batch (2×4×8)",
        ),
        (
            (
                PLACES,
                ("torch.Tensor.le", "{0} <= 1", (None, 4, 8), False),
                ("torch.Tensor.mul", "{1} * {0}", (None, 4, 8), "x"),
                MEAN,
            ),
            "mul, which uses places of samples in the batch (2×4×8)",
        ),
        ((PLACES, ("torch.gather", "{1}[{0}]", (None, 4, 8), "x"), MEAN), ""),
    ],
)
def test_places_in_the_batch_are_indices_only(steps, what):
    made = written(*steps)
    if what:
        with pytest.raises(InvalidProblemError, match=re.escape(what)):
            check_loss(made.small, made.large)
    else:
        check_loss(made.small, made.large)


@pytest.mark.parametrize(
    ("arguments", "is_mean"),
    [
        ("weight=None, ignore_index=-100, reduction='mean'", True),
        ("weight=None, ignore_index=0, reduction='none'", True),
        ("weight=None, ignore_index=0, reduction='mean'", False),
        ("weight={1}, ignore_index=-100, reduction='mean'", False),
    ],
)
def test_weighted_losses_that_no_values_check(arguments, is_mean):
    shape = () if "mean" in arguments else (None,)
    steps = [(WEIGHTED, f"f({{0}}, {arguments})", shape)]
    made = written(*steps, *([] if "mean" in arguments else [MEAN]))
    check_loss(made.small, made.large)
    if is_mean:
        check_loss(made.small, made.large, is_unchecked=True)
    else:
        with pytest.raises(InvalidProblemError, match="divide by weights of the batch"):
            check_loss(made.small, made.large, is_unchecked=True)


def test_figures_in_masks_that_no_values_check():
    figure = ("torch.Tensor.mean", "{0}.mean(0)", (4, 8), False)
    mask = ("torch.Tensor.lt", "{0} < {1}", (None, 4, 8), "x", False)
    made = written(figure, mask, ("torch.mul", "{1} * {0}", (None, 4, 8), "x"), MEAN)
    check_loss(made.small, made.large)
    with pytest.raises(InvalidProblemError, match="uses places of samples"):
        check_loss(made.small, made.large, is_unchecked=True)
