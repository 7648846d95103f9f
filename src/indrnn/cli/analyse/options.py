"""Options of the analyses of any run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ...layers import EPSILON


@dataclass
class GradientsOptions:
    """Plot the gradient flow over time and depth, as in the paper's figure 5, and write its numbers.

    Gradients are measured for each run's best weights on training batches, in training mode; the weights do not change.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders; for a fair comparison, of one task and at the same training accuracy."""
    out: Path = Path("results/gradients")
    """Output folder of gradients.json and gradients.png."""
    batches: int | None = None
    """Number of batches to average over; None for an epoch, or 100 if the data are endless."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class DepthOptions:
    """Measure how gradients reach the first layers, of a run before and after training or of untrained networks.

    With RUN: of its network on its task, layer by layer, before and after training. Without RUN: at the first and last
    block of untrained plain, residual and dense networks of 6 to 100 layers.
    """

    run: tyro.conf.Positional[Path | None] = None
    """The run's folder."""
    out: Path | None = None
    """Output folder; None for results/insight/NAME, or results/depth without RUN."""
    seeds: int = 5
    """Number of untrained networks to average over."""
    batches: int = 10
    """Number of training batches to average over; with RUN."""
    device: str = "auto"
    """Device, with RUN: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder, with RUN; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class RunOptions:
    """Options of an analysis of one run."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Output folder of the numbers, the table and the figure; None for results/insight/NAME."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class MemoryOptions(RunOptions):
    """Plot how many steps each neuron of a run remembers, by its recurrent weight and as measured on sequences."""

    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    items: int = 64
    """Minimum number of validation sequences to measure on; 0 for none, which needs no data."""
    epsilon: float = EPSILON
    """Threshold of influence: memory is the number of steps until a state's influence falls below it."""
    bounds: tuple[float, float] = (0.1, 0.5)
    """End of short memory and start of long memory, as fractions of the sequence length."""


@dataclass
class AblateOptions(MemoryOptions):
    """Ablation: measure a run without its neurons of short, middle and long memory, layer by layer.

    On validation data; ablated neurons output zero. The run is not changed.
    """

    items: int = 500
    """Minimum number of validation items to measure on."""
    controls: int = 1
    """Number of random controls per group: draws of as many neurons."""


@dataclass
class WeightsOptions(RunOptions):
    """Plot histograms of a run's recurrent weights, layer by layer, before and after training."""

    bins: int = 40
    """Number of bins of each histogram."""
