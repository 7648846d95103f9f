"""Inputs for the op, and what must come of them by the reference's forward pass and autograd alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from indrnn import recurrence
from indrnn.ops import reference
from indrnn.ops.calls import Backward, Forward


@dataclass
class Problem:
    """Arguments of `recurrence`, and the gradients that come back to its two results."""

    x: Tensor
    u: Tensor
    bias: Tensor | None
    h_0: Tensor | None
    lengths: Tensor | None
    resets: Tensor | None
    activation: str
    reverse: bool
    grad_h: Tensor
    grad_h_last: Tensor

    @property
    def forward_call(self) -> Forward:
        """As a backend takes it."""
        return Forward(self.x, self.u, self.bias, self.h_0, self.lengths, self.resets, self.activation, self.reverse)

    def backward_call(self, h: Tensor) -> Backward:
        """As a backend takes it, given the states."""
        gradients = (self.grad_h, self.grad_h_last)
        return Backward(*gradients, h, self.u, self.h_0, self.lengths, self.resets, self.activation, self.reverse)

    @property
    def leaves(self) -> list[Tensor]:
        return [leaf for leaf in (self.x, self.u, self.bias, self.h_0) if leaf is not None]

    def with_gradients(self) -> Problem:
        """Itself with new leaves that ask for gradients; views keep their strides."""

        def leaf(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.detach().requires_grad_()

        x, u = leaf(self.x), leaf(self.u)
        assert x is not None
        assert u is not None
        return replace(self, x=x, u=u, bias=leaf(self.bias), h_0=leaf(self.h_0))

    def to(self, dtype: torch.dtype) -> Problem:
        """Itself in another type."""
        bias, h_0 = (None if t is None else t.to(dtype) for t in (self.bias, self.h_0))
        x, u, grad_h, grad_h_last = (t.to(dtype) for t in (self.x, self.u, self.grad_h, self.grad_h_last))
        return replace(self, x=x, u=u, bias=bias, h_0=h_0, grad_h=grad_h, grad_h_last=grad_h_last)

    def run(self, backend: str | None) -> tuple[Tensor, Tensor]:
        return recurrence(
            self.x,
            self.u,
            self.h_0,
            bias=self.bias,
            activation=self.activation,
            reverse=self.reverse,
            lengths=self.lengths,
            resets=self.resets,
            backend=backend,
        )

    def solve(self, backend: str | None) -> list[Tensor]:
        """h, h_last, and the gradients of x, u, bias and h_0."""
        problem = self.with_gradients()
        outputs = problem.run(backend)
        return [t.detach() for t in outputs] + problem._pull_back(outputs)

    def solve_by_autograd(self) -> list[Tensor]:
        """The same, with autograd through the reference's forward pass in place of any backward pass of ours."""
        problem = self.with_gradients()
        outputs = reference.forward(problem.forward_call)
        return [t.detach() for t in outputs] + problem._pull_back(outputs)

    def _pull_back(self, outputs: tuple[Tensor, Tensor]) -> list[Tensor]:
        # With no step and no h_0, the reference's results depend on nothing.
        pairs = zip(outputs, (self.grad_h, self.grad_h_last), strict=True)
        dependent = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        if not dependent:
            return [torch.zeros_like(leaf) for leaf in self.leaves]
        outs, gradients = zip(*dependent, strict=True)
        return list(torch.autograd.grad(outs, self.leaves, gradients, allow_unused=True, materialize_grads=True))


def problem(
    T: int = 7,
    B: int = 3,
    N: int = 13,
    between: tuple[int, ...] = (),
    *,
    activation: str = "relu",
    reverse: bool = False,
    bias: bool = True,
    h_0: bool = True,
    lengths: bool = False,
    resets: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Problem:
    """A random problem of this kind."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return Problem(
        x=normal(T, B, *between, N),
        u=(torch.rand(N, generator=generator, dtype=torch.float64) * 2.2 - 1.1).to(dtype),
        bias=normal(N) if bias else None,
        h_0=normal(B, *between, N) if h_0 else None,
        lengths=torch.randint(0, T + 1, (B,), generator=generator) if lengths else None,
        resets=torch.rand((T, B), generator=generator) < 0.3 if resets else None,
        activation=activation,
        reverse=reverse,
        grad_h=normal(T, B, *between, N),
        grad_h_last=normal(B, *between, N),
    )


NAMES = ("h", "h_last", "grad_x", "grad_u", "grad_bias", "grad_h_0")


def assert_same(actual: list[Tensor], expected: list[Tensor], **tolerance: Any) -> None:
    """Each result close to its counterpart, of its type and shape, and NaN exactly where it is NaN."""
    for name, a, e in zip(NAMES, actual, expected, strict=False):
        torch.testing.assert_close(a, e, equal_nan=True, msg=f"{{}} of {name}".format, **tolerance)
    assert len(actual) == len(expected)
