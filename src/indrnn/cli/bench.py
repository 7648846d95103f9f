"""`indrnn bench`: a training step of IndRNN beside `torch.nn.LSTM` on this device, its results checked first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from torch import Tensor, nn

from ..checks import check_count, check_threads
from ..layers import IndRNN
from ..ops import backends
from ..training import RunError
from ..training.folder import machine
from ..training.parallel import Processes, choose_device
from .main import say
from .parse import Parser

INPUTS, HIDDEN, BATCH, TOLERANCE = 2, 128, 50, 1e-4


@dataclass
class BenchOptions:
    """Time a training step of one layer of IndRNN and of torch.nn.LSTM on this device, in less than a minute.

    A step is the forward pass, a loss over all steps of the sequence, and the backward pass, in float32. Output and
    gradients are first compared with those of the reference. The two layers alternate; the table holds medians over
    rounds, and the 20 % and 80 % quantiles of the ratio. For reliable figures, run nothing else on the machine.
    """

    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    steps: tuple[int, ...] = (256, 1024)
    """Sequence lengths T."""
    rounds: int = 9
    """Number of timings of each layer and length."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""


BENCH = Parser("bench", BenchOptions)


def bench(arguments: list[str]) -> int:
    """Compare the layer's speed with LSTM's."""
    options = BENCH(arguments)
    check_count("number of steps", len(options.steps))
    for T in options.steps:
        check_count("steps", T)
    check_count("rounds", options.rounds, least=2)
    if options.threads is not None:
        check_threads(options.threads)
        torch.set_num_threads(options.threads)
    device = choose_device(options.device, Processes())
    names = " ".join(name for name, backend in backends(torch.empty(0, device=device)).items() if backend.available)
    about = {"device": device, "threads": torch.get_num_threads(), **machine(), "backends": names}
    say(", ".join(f"{key} {value}" for key, value in about.items()))
    torch.manual_seed(0)
    lstm, ours = nn.LSTM(INPUTS, HIDDEN, device=device), IndRNN(INPUTS, HIDDEN, device=device)
    x = torch.rand(min(options.steps), BATCH, INPUTS, device=device)
    say(f"\noutput and gradients differ from those of the reference by {check_agreement(ours, x):.0e} at most\n")
    title = f"training step, {INPUTS} → {HIDDEN}, batch {BATCH}"
    say(f"| {title} | torch.nn.LSTM, ms | IndRNN, ms | times faster [20 %, 80 %] |\n|---|---|---|---|")
    for T in options.steps:
        x, weights = torch.rand(T, BATCH, INPUTS, device=device), torch.rand(T * BATCH * HIDDEN, device=device)
        steps = {"lstm": training_step(lstm, x, weights), "ours": training_step(ours, x, weights)}
        ms = interleaved(steps, options.rounds, device)
        ratios = [a / b for a, b in zip(ms["lstm"], ms["ours"], strict=True)]
        low, *_, high = quantiles(ratios, n=5, method="inclusive")
        times = f"{median(ms['lstm']):.2f} | {median(ms['ours']):.2f}"
        say(f"| T = {T} | {times} | {median(ratios):.2f} [{low:.2f}, {high:.2f}] |")
    return 0


def check_agreement(layer: IndRNN, x: Tensor) -> float:
    """Largest difference of output and gradients from the reference's, relative to the largest number of each tensor.

    Raises:
        RunError: if it is above the tolerance.
    """
    reference = IndRNN(layer.input_size, layer.hidden_size, backend="reference", device=x.device)
    reference.load_state_dict(layer.state_dict())
    results = []
    for model in (layer, reference):
        output = model(x)[0]
        results.append([output.detach(), *torch.autograd.grad(output.square().mean(), list(model.parameters()))])
    difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True))
    if not difference <= TOLERANCE:
        raise RunError(f"output or gradients differ from those of the reference by {difference:.0e}: nothing is timed")
    return difference


def training_step(model: nn.Module, x: Tensor, weights: Tensor) -> Callable[[], None]:
    """A training step: forward, a loss over all steps, backward."""

    def run() -> None:
        x.grad = None
        model.zero_grad(set_to_none=True)
        torch.dot(model(x)[0].flatten(), weights).backward()

    return run


def interleaved(
    candidates: Mapping[str, Callable[[], object]], rounds: int, device: torch.device, warm_up: int = 2
) -> dict[str, list[float]]:
    """Milliseconds, round by round: each runs once a round, so that other load on the machine affects all alike."""
    ms: dict[str, list[float]] = {name: [] for name in candidates}
    for i in range(warm_up + rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            if i >= warm_up:
                ms[name].append((time.perf_counter() - start) * 1e3)
    return ms
