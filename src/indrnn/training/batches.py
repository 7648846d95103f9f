"""Batches of a run, prefetched in a thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from .options import Training
from .parallel import Processes
from .task import Batch, Shard, Task


class Batches:
    """The batches of a run, on its device; prefetched in a thread if the task asks for it."""

    def __init__(self, task: Task, group: Processes, options: Training, device: torch.device) -> None:
        self.task, self.group, self.device = task, group, device
        self.pieces, self.steps = options.accumulate, options.steps
        self._pool = ThreadPoolExecutor(1, "batches") if getattr(task, "prefetch", False) else None
        self._prefetched: dict[tuple[int, int], Future[Batch]] = {}  # the next one, by step and piece

    def __call__(self, step: int, piece: int = 0) -> Batch:
        """This process's piece of the batch of a step."""
        if self._pool is None:
            return self.again(step, piece)
        future = self._prefetched.get((step, piece))
        batch = self._make(step, piece) if future is None else future.result()
        following = (step, piece + 1) if piece + 1 < self.pieces else (step + 1, 0)
        self._prefetched = {}
        if following[0] < self.steps:
            self._prefetched[following] = self._pool.submit(self._make, *following)
        return batch.to(self.device)

    def again(self, step: int, piece: int = 0) -> Batch:
        """This process's piece of any step's batch; the prefetched batch is not affected."""
        return self._make(step, piece).to(self.device)

    def _make(self, step: int, piece: int) -> Batch:
        shard = Shard(self.group.rank * self.pieces + piece, self.group.count * self.pieces)
        batch = self.task.batch(step, shard)
        return batch.pinned() if self._pool is not None and self.device.type == "cuda" else batch

    def close(self) -> None:
        """End the thread."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
