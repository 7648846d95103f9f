"""Dropout with one mask for all time steps, and of whole rows of an embedding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from indrnn.layers.masks import SharedDropout, dropout_mask, embedding_dropout, shared_dropout

T, B, N = 11, 7, 63

probabilities = pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
betweens = pytest.mark.parametrize("between", [(), (3, 2)], ids=["(T, B, N)", "two between"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


def dropped_share(mask: Tensor, p: float) -> float:
    """How far the share of zeros is from p, in standard deviations."""
    share = float((mask == 0).double().mean())
    return abs(share - p) / math.sqrt(p * (1 - p) / mask.numel())


@dtypes
@betweens
@probabilities
def test_one_mask_over_time(p: float, between: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.ones(T, B, *between, N, dtype=dtype)
    y = SharedDropout(p)(x)
    assert y.dtype == dtype
    assert (y == y[:1]).all()
    assert dropped_share(y[0], p) < 4
    kept = y[y != 0].double()
    assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=torch.finfo(dtype).eps, atol=0)


def test_each_sample_and_each_call_has_its_own_mask() -> None:
    drop = SharedDropout()
    first, second = drop(torch.ones(T, B, N))[0], drop(torch.ones(T, B, N))[0]
    assert len({tuple(row.tolist()) for row in [*first, *second]}) == 2 * B


def test_gradient_goes_where_the_values_went() -> None:
    x = torch.randn(T, B, N, dtype=torch.float64, requires_grad=True)
    y = SharedDropout(0.3)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert_close(gradient * x, y)
    assert (gradient == 0).any()


def test_the_mean_is_kept() -> None:
    x = torch.ones(1, 99, 1001)
    assert abs(float(SharedDropout(0.4)(x).mean()) - 1) < 4 * math.sqrt(0.4 / 0.6 / x.numel())


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_evaluation_drops_nothing(p: float) -> None:
    x = torch.randn(T, B, N)
    assert torch.equal(SharedDropout(p).eval()(x), x)
    assert torch.equal(shared_dropout(x, p, False), x)
    assert dropout_mask(x, p, False) is None


def test_probability_zero_drops_nothing() -> None:
    x = torch.randn(T, B, N)
    state = torch.get_rng_state()
    assert torch.equal(SharedDropout(0.0)(x), x)
    assert dropout_mask(x, 0.0, True) is None
    assert torch.equal(torch.get_rng_state(), state)  # nor is a number drawn, on which later ones would depend


def test_probability_one_drops_all() -> None:
    x = torch.randn(T, B, N, requires_grad=True)
    y = SharedDropout(1.0)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert (y == 0).all()
    assert (gradient == 0).all()


def test_no_steps() -> None:
    assert SharedDropout()(torch.ones(0, B, N)).shape == (0, B, N)


def test_the_mask_is_what_the_values_are_multiplied_by() -> None:
    x = torch.randn(T, B, N)
    torch.manual_seed(7)
    mask = dropout_mask(x, 0.3, True)
    torch.manual_seed(7)
    assert mask is not None
    assert mask.shape == (1, B, N)
    assert torch.equal(shared_dropout(x, 0.3, True), x * mask)


BAD: list[Any] = [-0.1, 1.1, float("nan"), "0.5", True, None]


@pytest.mark.parametrize("p", BAD)
def test_bad_probability_is_named(p: Any) -> None:
    with pytest.raises(ValueError, match=r"p must be a number in \[0, 1\], got "):
        SharedDropout(p)


def test_repr_shows_the_probability() -> None:
    assert repr(SharedDropout(0.25)) == "SharedDropout(p=0.25)"


@dtypes
@probabilities
def test_embedding_dropout_drops_whole_rows(p: float, dtype: torch.dtype) -> None:
    weight = torch.ones(999, 5, dtype=dtype)
    dropped = embedding_dropout(weight, p, True)
    assert dropped.dtype == dtype
    assert (dropped == dropped[:, :1]).all()
    assert dropped_share(dropped[:, 0], p) < 4
    kept = dropped[dropped != 0].double()
    assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=torch.finfo(dtype).eps, atol=0)


def test_embedding_dropout_leaves_the_weight_alone() -> None:
    weight = torch.randn(99, 5, requires_grad=True)
    before = weight.detach().clone()
    dropped = embedding_dropout(weight, 0.5, True)
    (gradient,) = torch.autograd.grad(dropped.sum(), weight)
    assert torch.equal(weight, before)
    assert_close(gradient * weight, dropped)


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True), (1.0, False)])
def test_embedding_dropout_that_drops_nothing(p: float, training: bool) -> None:
    weight = torch.randn(99, 5)
    assert torch.equal(embedding_dropout(weight, p, training), weight)


def test_embedding_dropout_of_all() -> None:
    assert (embedding_dropout(torch.randn(99, 5), 1.0, True) == 0).all()
