"""`indrnn bench`: a training step of IndRNN beside `torch.nn.LSTM` on this device, its results checked first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

from ..checks import check_count
from ..system import load_torch
from .main import say
from .parse import parse

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..layers import IndRNN

INPUTS, HIDDEN, BATCH, TOLERANCE = 2, 128, 50, 1e-4


@dataclass
class BenchOptions:
    """Time a training step of one layer of IndRNN and of torch.nn.LSTM on this device, in less than a minute.

    Forward, a loss over all steps of the sequence, backward, in float32; output and gradients are compared with the
    reference's first. The two layers alternate; the table holds medians over rounds, and quantiles of the ratio.
    """

    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    steps: tuple[int, ...] = (256, 1024)
    """Sequence lengths T."""
    rounds: int = 9
    """Number of timings of each layer and length."""


def bench(arguments: list[str]) -> None:
    """Compare the layer's speed with LSTM's."""
    options: BenchOptions = parse("bench", BenchOptions, arguments)
    check_count("number of steps", len(options.steps))
    for T in options.steps:
        check_count("steps", T)
    check_count("rounds", options.rounds, least=2)
    load_torch()
    import torch

    from ..layers import IndRNN
    from ..ops import backends
    from ..training.folder import machine
    from ..training.parallel import choose_device

    device = choose_device(options.device)
    wait = (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize
    names = " ".join(name for name, backend in backends(torch.empty(0, device=device)).items() if backend.available)
    setting = {"device": device, "threads": torch.get_num_threads(), **machine(), "backends": names}
    say(", ".join(f"{key} {value}" for key, value in setting.items()))
    torch.manual_seed(0)
    lstm, ours = torch.nn.LSTM(INPUTS, HIDDEN, device=device), IndRNN(INPUTS, HIDDEN, device=device)
    x = torch.rand(min(options.steps), BATCH, INPUTS, device=device)
    say(f"\noutput and gradients differ from those of the reference by {check_agreement(ours, x):.0e} at most\n")
    say(f"training step, {INPUTS} → {HIDDEN}, batch {BATCH}\n")
    say("| | torch.nn.LSTM, ms | IndRNN, ms | times faster [20 %, 80 %] |\n|---|---|---|---|")
    for T in options.steps:
        x, weights = torch.rand(T, BATCH, INPUTS, device=device), torch.rand(T * BATCH * HIDDEN, device=device)
        steps = [training_step(lstm, x, weights), training_step(ours, x, weights)]
        theirs, our = interleaved(steps, options.rounds, wait)
        ratios = [a / b for a, b in zip(theirs, our, strict=True)]
        low, *_, high = quantiles(ratios, n=5, method="inclusive")
        say(f"| T = {T} | {median(theirs):.2f} | {median(our):.2f} | {median(ratios):.2f} [{low:.2f}, {high:.2f}] |")


def check_agreement(layer: IndRNN, x: Tensor) -> float:
    """Largest difference of output and gradients from the reference's, relative to each tensor's largest number.

    Raises RunError if it is above the tolerance.
    """
    from ..training import RunError

    reference = type(layer)(layer.input_size, layer.hidden_size, backend="reference", device=x.device)
    reference.load_state_dict(layer.state_dict())
    results = []
    for model in (layer, reference):
        output = model(x)[0]
        output.square().mean().backward()
        results.append([output.detach(), *(parameter.grad for parameter in model.parameters())])
    difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True))
    if not difference <= TOLERANCE:
        raise RunError(f"output or gradients differ from those of the reference by {difference:.0e}: nothing is timed")
    return difference


def training_step(model: nn.Module, x: Tensor, weights: Tensor) -> Callable[[], None]:
    """A training step: forward, a loss over all steps, backward."""

    def run() -> None:
        x.grad = None
        model.zero_grad(set_to_none=True)
        model(x)[0].flatten().dot(weights).backward()

    return run


def interleaved(runs: Sequence[Callable[[], object]], rounds: int, wait: Callable[[], None]) -> list[list[float]]:
    """Milliseconds of each, round by round: each runs once a round, so that other load affects all alike."""
    ms: list[list[float]] = [[] for _ in runs]
    for i in range(rounds + 2):  # the first two are warm-up
        for times, run in zip(ms, runs, strict=True):
            start = time.perf_counter()
            run()
            wait()
            if i >= 2:
                times.append((time.perf_counter() - start) * 1e3)
    return ms
