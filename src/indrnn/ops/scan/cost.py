"""The cost model of the scan: how long a chunk of time should be, and where a scan is estimated to pay on a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LONGEST_CHUNK = 512


def chunk_length(T: int) -> int:
    """The length of a chunk for which 2·C + T/C, the steps that follow each other, are fewest."""
    return max(1, min(_LONGEST_CHUNK, round(math.sqrt(T / 2))))


def gpu_chunk_length(T: int, chains: int) -> int:
    """The length of a chunk for the Triton kernels, a multiple of 16, so of the steps whose loads go out together.

    As short as gives 2^17 threads, which fill a GPU, but not shorter than the one for which the fewest steps follow
    each other.
    """
    return 16 * max(1, math.ceil(max(T * chains / 2**17, math.sqrt(T / 2)) / 16))


@dataclass(frozen=True)
class Device:
    """What the cost model knows of a GPU. These are estimates; nothing was measured on one."""

    step: float
    """Seconds of a step of one chain: its part of a wait for memory, and arithmetic that waits for the step before."""
    bandwidth: float
    """Bytes a second."""
    launch: float = 5e-6
    """Seconds of a kernel's start."""


A100, H100 = Device(40e-9, 1.5e12), Device(30e-9, 3.0e12)


def estimate(T: int, chains: int, itemsize: int, device: Device = A100) -> tuple[float, float]:
    """Seconds of a forward and a backward pass on a GPU, sequential and parallel in time: docs/scan.md has the formula.

    These are estimates from the number of steps that follow each other and of bytes that are moved, not measurements.
    """
    C, size = gpu_chunk_length(T, chains), T * chains * itemsize
    sequential = max(2 * T * device.step, 5 * size / device.bandwidth)
    in_chunks = max(2 * (2 * C + T / C) * device.step, 8 * size / device.bandwidth) + 4 * device.launch
    return sequential, in_chunks
