"""`from_rnn`: a linear RNN as a two-layer IndRNN, the paper's Appendix A.

h_t = W x_t + U h_{t−1} with U = V Λ V⁻¹ is h_t = V z_t with z_t = V⁻¹ W x_t + λ ⊙ z_{t−1}. Where U has pairs of complex
eigenvalues, which rotate the state, λ is complex: real neurons give sums of λᵗ, never rᵗ cos θt.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_choice, check_count
from ..layers import IndRNN
from ..layers.indrnn import add_parameters
from ..ops.checks import check_tensor

MAX_CONDITION = 1e8
"""The condition number of eigenvectors beyond which a matrix counts as not diagonalisable: half of float64's digits."""


class ComplexIndRNN(nn.Module):
    """z_t = W x_t + u ⊙ z_{t−1} + b with complex W, u and b and a real input x; the output is complex.

    In plain PyTorch, differentiable to any order by autograd. Input and output are (T, B, ...), time first. Without
    `bias` there is no b. The `backend` is "scan", log T passes over all steps at once, or "reference", a loop over the
    steps. The `dtype` of the parameters is complex64 or complex128.
    """

    weight_ih: nn.Parameter
    weight_hh: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        backend: str = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.complex64,
    ) -> None:
        super().__init__()
        check_count("input_size", input_size)
        check_count("hidden_size", hidden_size)
        check_choice("backend", backend, ("scan", "reference"))
        if not dtype.is_complex:
            raise ValueError(f"dtype must be complex64 or complex128, got {dtype}")
        self.input_size, self.hidden_size, self.backend = input_size, hidden_size, backend
        add_parameters(self, (hidden_size, input_size), (hidden_size,), bias, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reinitialise all parameters: both parts of W as in `IndRNN`, u with radius U(0, 1) and any angle, b as 0."""
        limit = 0.304 / math.sqrt(self.input_size)
        parts = [torch.empty_like(self.weight_ih.real).uniform_(-limit, limit) for _ in range(2)]
        self.weight_ih.copy_(torch.complex(*parts))
        radius = torch.empty_like(self.weight_hh.real).uniform_(0, 1)
        self.weight_hh.copy_(torch.polar(radius, torch.empty_like(radius).uniform_(-math.pi, math.pi)))
        if self.bias is not None:
            self.bias.zero_()

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return z (T, B, hidden_size) and z_T (B, hidden_size), from the input (T, B, input_size) and a z_0."""
        x = F.linear(input.to(self.weight_ih.dtype), self.weight_ih, self.bias)
        run = complex_scan if self.backend == "scan" else complex_reference
        z = run(x, self.weight_hh, hx)
        last = z[-1] if len(z) else hx
        return z, x.new_zeros(x.shape[1:]) if last is None else last

    def extra_repr(self) -> str:
        """Sizes and backend."""
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias is not None}, backend={self.backend!r}"


def complex_reference(x: Tensor, u: Tensor, h_0: Tensor | None = None) -> Tensor:
    """h_t = x_t + u ⊙ h_{t−1}, step by step: (T, ..., N)."""
    h = torch.zeros_like(u).expand(x.shape[1:]) if h_0 is None else h_0
    rows = [*itertools.accumulate(x, lambda h, x_t: x_t + u * h, initial=h)][1:]
    return torch.stack(rows) if rows else torch.zeros_like(x)


def complex_scan(x: Tensor, u: Tensor, h_0: Tensor | None = None) -> Tensor:
    """As `complex_reference`, in log T passes.

    A step is the affine map h → u ⊙ h + x_t, and two such maps compose to one. After the pass over distance s,
    row t holds the composition of the last 2s maps: its slope is u^(2s), the same in every row.
    """
    if h_0 is not None and len(x):
        x = torch.cat([(x[0] + u * h_0).unsqueeze(0), x[1:]])
    distance, slope = 1, u
    while distance < len(x):
        x = torch.cat([x[:distance], x[distance:] + slope * x[:-distance]])
        distance, slope = 2 * distance, slope * slope
    return x


class LinearRNN(nn.Module):
    """Two layers that compute h_t = W x_t + U h_{t−1} + b: independent `neurons`, and `mix`, the eigenvectors.

    Input and output are as for `torch.nn.RNN` with one layer: (T, B, input_size) to (T, B, hidden_size) and
    h_n (1, B, hidden_size). `mix` is (hidden_size, neurons), and the real part of its result is the output; `into`,
    (neurons, hidden_size), maps a state h_0 to the neurons' states.
    """

    into: Tensor

    def __init__(self, neurons: IndRNN | ComplexIndRNN, mix: Tensor, into: Tensor) -> None:
        super().__init__()
        self.neurons = neurons
        self.mix = nn.Parameter(mix)
        self.register_buffer("into", into)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run over a sequence; hx is h_0, (1, B, hidden_size), or zeros if None."""
        if input.dim() != 3 or input.shape[-1] != self.neurons.input_size:
            raise ValueError(f"input must have the shape (T, B, {self.neurons.input_size}), got {tuple(input.shape)}")
        check_tensor("hx", hx, (1, input.shape[1], len(self.mix)))
        one = isinstance(self.neurons, ComplexIndRNN)  # whose states have no dimension for layers
        start = None if hx is None else F.linear((hx[0] if one else hx).to(self.into.dtype), self.into)
        z, last = self.neurons(input, start)
        h = self._mixed(z)
        # Not mixed by itself: a product of other sizes may round otherwise, and h_n is to be the last row to the bit
        return h, h[-1:].clone() if len(h) else self._mixed(last).view(1, *h.shape[1:])

    def _mixed(self, z: Tensor) -> Tensor:
        h = F.linear(z, self.mix)
        return h.real.contiguous() if h.is_complex() else h


@dataclass(frozen=True)
class Conversion:
    """The result of `from_rnn`: the model, in W's type, and its quality."""

    model: LinearRNN
    """Model of two layers."""
    eigenvalues: Tensor
    """Recurrent weights of the neurons: real, or complex with one of each pair."""
    condition: float
    """Condition number of the eigenvectors: how much rounding is magnified. 1 for a symmetric U."""
    error: float
    """Largest ‖V Λᵗ V⁻¹ − Uᵗ‖ for t = 0, 1, 2, 4, … up to `steps`, relative to the largest ‖Uᵗ‖; in float64."""
    perturbation: float
    """Norm of what was added to U, relative to ‖U‖, because U is not diagonalisable; 0 where it is."""

    @property
    def is_real(self) -> bool:
        """Whether the neurons are real, an `IndRNN`."""
        return not self.eigenvalues.is_complex()


def from_rnn(
    rnn: Any, *, steps: int = 1000, max_condition: float = MAX_CONDITION, backend: str | None = None
) -> Conversion:
    """Convert a linear RNN, h_t = W x_t + U h_{t−1} + b, into a two-layer IndRNN that computes the same.

    A symmetric U, or any with real eigenvalues, gives an `IndRNN`; pairs of complex eigenvalues give a `ComplexIndRNN`
    with one neuron for each pair. If U is not diagonalisable, or so nearly that its eigenvectors are useless, the
    perturbation of U (or none) with the smallest error is chosen; a warning gives both.

    Args:
        rnn: (W, U) or (W, U, b), with W (N, M), U (N, N) and b (N,); or an object with `weight_ih` and `weight_hh` (or
            `weight_ih_l0` and `weight_hh_l0`), biases of such names if it has any, and the nonlinearity "identity".
        steps: length of the sequences that `error` is to hold for.
        max_condition: condition number of the eigenvectors above which perturbations of U are tried.
        backend: backend of the neurons: as for `IndRNN`, or for complex ones "scan" or "reference".

    Example:
        conversion = indrnn.from_rnn((W, U))
        h, h_n = conversion.model(x)
    """
    W, U, bias = _matrices(rnn)
    check_count("steps", steps)
    if not max_condition >= 1:
        raise ValueError(f"max_condition must be at least 1, got {max_condition}")
    dtype, device = W.dtype, W.device
    W, U = (matrix.detach().to("cpu", torch.float64) for matrix in (W, U))
    best = _decompose(U, U, steps)
    if best.condition > max_condition:
        size = float(torch.linalg.matrix_norm(U, 2))
        # A fixed, dense random matrix of norm 1
        direction = torch.randn(U.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        direction /= torch.linalg.matrix_norm(direction, 2)
        candidates = [_decompose(U + size * 10.0**-k * direction, U, steps, 10.0**-k) for k in range(2, 16)]
        best = min([best, *candidates], key=lambda eigen: eigen.error)
        done = f"U was perturbed by {best.perturbation:.0e} of its norm" if best.perturbation else "U was kept"
        warnings.warn(
            f"U is not diagonalisable, or nearly so: {done}, and the error over {steps} steps is {best.error:.1e} "
            f"(condition of the eigenvectors {best.condition:.1e})",
            stacklevel=2,
        )
    model = _model(best, W, bias, dtype, backend).to(device)
    weight = model.neurons.get_parameter("weight_hh" if best.values.is_complex() else "weight_hh_l0")
    return Conversion(model, weight.detach(), *best[3:])


class _Eigen(NamedTuple):
    values: Tensor
    vectors: Tensor
    inverse: Tensor
    condition: float
    error: float
    perturbation: float


def _decompose(matrix: Tensor, U: Tensor, steps: int, perturbation: float = 0.0) -> _Eigen:
    """The eigendecomposition of a matrix, and its error of the powers of U that are finite; see `Conversion`."""
    if torch.equal(matrix, matrix.mT):
        values, vectors = torch.linalg.eigh(matrix)
        inverse, condition = vectors.mT, 1.0
    else:
        values, vectors = torch.linalg.eig(matrix)
        if not values.imag.any():
            values, vectors = values.real, vectors.real
        condition = float(torch.linalg.cond(vectors))
        inverse, singular = torch.linalg.inv_ex(vectors)
        if singular:
            return _Eigen(values, vectors, torch.full_like(vectors, math.nan), math.inf, math.inf, perturbation)
    largest, worst = 1.0, 0.0
    for t in (0, *(2**k for k in range((steps - 1).bit_length())), steps):
        expected = torch.linalg.matrix_power(U, t)
        if not expected.isfinite().all():
            break
        got = (vectors * values**t) @ inverse
        largest = max(largest, float(torch.linalg.matrix_norm(expected, 2)))
        difference = float(torch.linalg.matrix_norm((got.real if got.is_complex() else got) - expected, 2))
        worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return _Eigen(values, vectors, inverse, condition, worst / largest, perturbation)


def _model(eigen: _Eigen, W: Tensor, bias: Tensor | None, dtype: torch.dtype, backend: str | None) -> LinearRNN:
    """The layer of neurons with what maps from them and to them, as a model."""
    values, mix, into = eigen[:3]
    neurons: IndRNN | ComplexIndRNN
    if values.is_complex():
        upper = values.imag >= 0  # of a pair z and its conjugate, one: their sum is twice its real part
        mix = (mix * torch.where(values.imag > 0, 2.0, 1.0))[:, upper]
        values, into = values[upper], into[upper]
        dtype, end = dtype.to_complex(), ""
        neurons = ComplexIndRNN(W.shape[1], len(values), bias is not None, backend=backend or "scan", dtype=dtype)
    else:
        options: dict[str, Any] = {"gamma": None, "backend": backend, "dtype": dtype}
        neurons, end = IndRNN(W.shape[1], len(values), 1, "identity", bias is not None, **options), "_l0"
    parameters = {"weight_ih": into @ W.to(into.dtype), "weight_hh": values}
    if bias is not None:
        parameters["bias"] = into @ bias.detach().to("cpu", into.dtype)
    with torch.no_grad():
        for name, value in parameters.items():
            neurons.get_parameter(name + end).copy_(value)
    return LinearRNN(neurons, mix.to(dtype), into.to(dtype))


def _matrices(rnn: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """W, U and b of `rnn`, checked."""
    W, U, bias = _parts(rnn)
    for name, value in {"W": W, "U": U, **({} if bias is None else {"bias": bias})}.items():
        if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
            kind = getattr(value, "dtype", type(value))
            raise TypeError(f"{name} must be a tensor of float32 or float64, got {kind}")
        if not value.isfinite().all():
            raise ValueError(f"{name} must be finite")
    if U.dim() != 2 or U.shape[0] != U.shape[1] or not len(U):
        raise ValueError(f"U must be a square matrix, got the shape {tuple(U.shape)}")
    if W.dim() != 2 or W.shape[0] != len(U) or not W.shape[1]:
        raise ValueError(f"W must have the shape ({len(U)}, inputs), got {tuple(W.shape)}")
    check_tensor("bias", bias, (len(U),))
    return W, U, bias


def _parts(rnn: Any) -> tuple[Any, Any, Any]:
    """W, U and b of `rnn`, whatever they are."""
    if isinstance(rnn, (tuple, list)):
        if len(rnn) not in (2, 3):
            raise ValueError(f"rnn must be W and U, or W, U and a bias, got {len(rnn)} parts")
        return (*rnn, None)[:3]
    end = "_l0" if hasattr(rnn, "weight_ih_l0") else ""
    if not (hasattr(rnn, f"weight_ih{end}") and hasattr(rnn, f"weight_hh{end}")):
        raise TypeError(f"rnn must be (W, U) or have weight_ih and weight_hh, got {type(rnn).__name__}")
    nonlinearity = getattr(rnn, "nonlinearity", None)
    if nonlinearity != "identity":
        raise ValueError(
            f"rnn must be linear, with nonlinearity 'identity', got {nonlinearity!r} of {type(rnn).__name__}: "
            "there is no equal IndRNN; indrnn.distil trains one to give its outputs"
        )
    if getattr(rnn, "num_layers", 1) != 1 or getattr(rnn, "bidirectional", False):
        raise ValueError("rnn must have one layer in one direction")
    names = (f"bias{end}", f"bias_ih{end}", f"bias_hh{end}")
    tensors = [bias for name in names if isinstance(bias := getattr(rnn, name, None), Tensor)]
    bias = sum(tensors[1:], tensors[0]) if tensors else None
    return getattr(rnn, f"weight_ih{end}"), getattr(rnn, f"weight_hh{end}"), bias
