"""Train a two-layer IndRNN on the adding problem for a minute, and say how far it came.

A sequence holds a random number at each step and marks two of the steps; the answer is the sum of the two marked
numbers. Always answering 1 has a mean squared error of 1/6 = 0.167.
"""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import indrnn

BASELINE = 1 / 6


def adding_problem(T: int, batch: int) -> tuple[Tensor, Tensor]:
    """Make a fresh batch: input (T, batch, 2) and answer (batch,)."""
    values = torch.rand(T, batch)
    marked = torch.stack([torch.randperm(T)[:2] for _ in range(batch)], dim=1)  # (2, batch): two different steps each
    marks = torch.zeros(T, batch).scatter_(0, marked, 1.0)
    return torch.stack([values, marks], dim=-1), (values * marks).sum(0)


class Adder(nn.Module):
    """Two layers of 128 neurons; the last step's state gives the answer."""

    def __init__(self, T: int) -> None:
        super().__init__()
        self.rnn = indrnn.IndRNN(2, 128, num_layers=2, gamma=2.0, sequence_length=T, long_memory=True)
        self.answer = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(T, batch, 2) to (batch,)."""
        output, _ = self.rnn(x)
        return self.answer(output[-1]).squeeze(-1)  # type: ignore[no-any-return]


def train(T: int, batch: int, seconds: float, lr: float) -> tuple[Adder, int]:
    """Train for this long, with a bar that shows the error; Ctrl-C ends it early."""
    model = Adder(T)
    optimizer = torch.optim.Adam(indrnn.parameter_groups(model, weight_decay=0.0), lr=lr)
    indrnn.attach_constraint(optimizer, model)
    columns = (BarColumn(), TextColumn("{task.description}"), TextColumn("left"), TimeRemainingColumn())
    step, recent, start = 0, BASELINE, time.monotonic()
    with Progress(*columns, console=Console(width=100)) as progress:
        bar = progress.add_task("starting", total=seconds)
        try:
            while (elapsed := time.monotonic() - start) < seconds:
                for group in optimizer.param_groups:  # down to nothing at the end, or the error stays noisy
                    group["lr"] = lr * (1 - elapsed / seconds)
                x, answer = adding_problem(T, batch)
                loss = nn.functional.mse_loss(model(x), answer)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                recent += 0.02 * (loss.item() - recent)
                told = f"step {step:5}  error {recent:.4f}  {step / max(elapsed, 1e-9):4.0f} steps/s"
                progress.update(bar, completed=elapsed, description=told)
        except KeyboardInterrupt:
            progress.console.print("stopped early")
    return model, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=100, help="steps of a sequence (default 100)")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train (default 60)")
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    if options.length < 2 or options.batch < 1 or options.seconds <= 0 or options.lr <= 0:
        parser.error("--length must be at least 2, --batch at least 1, --seconds and --lr positive")
    torch.manual_seed(0)
    backend = next(name for name, status in indrnn.backends().items() if status.chosen)
    print(f"adding problem, {options.length} steps: two-layer IndRNN, 128 neurons a layer, backend {backend!r}")
    model, steps = train(options.length, options.batch, options.seconds, options.lr)
    model.eval()
    with torch.inference_mode():
        x, answer = adding_problem(options.length, 1000)
        error = nn.functional.mse_loss(model(x), answer).item()
    verdict = "learnt to add" if error < 0.01 else "on its way" if error < 0.1 else "not learnt yet: give it longer"
    print(
        f"after {steps} steps: mean squared error {error:.5f} on 1,000 fresh sequences, "
        f"against {BASELINE:.3f} of always answering 1 ({verdict})"
    )


if __name__ == "__main__":
    main()
