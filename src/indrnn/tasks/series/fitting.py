"""`Fitting`: what an estimator trains, of data that have been interpreted: preparation, target, plan and tasks."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ...networks.config import Head
from ...training import Cosine, RunFolder, Training, derive_seed
from .collection import Array, Collection
from .defaults import Plan
from .preparation import Preparation
from .split import hold_out
from .targets import Target
from .task import Part, SeriesTask


@dataclass(frozen=True, eq=False)
class Fitting:
    """Data and settings of a fit, except its output folder; `tasks.runs.train_members` trains it."""

    data: Collection
    """Series that are trained on, those held back included."""
    preparation: Preparation
    target: Target
    plan: Plan
    seed: int
    weights: Array | None = None
    """Weights of the series, (n,)."""
    class_weights: Array | None = None
    """Weights of the classes, (classes,)."""
    device: str = "auto"
    threads: int | None = None

    @property
    def members(self) -> int:
        """Number of networks that are trained."""
        return self.plan.members

    def member_seed(self, member: int) -> int:
        """Seed of one network of the ensemble."""
        return member_seed(self.seed, member)

    def with_seed_of(self, out: str | Path | None) -> Fitting:
        """Return a copy with the seed of the run in the folder `out`, if there is one."""
        for home in () if out is None else (Path(out), Path(out) / "member-0"):
            folder = RunFolder(home)
            if folder.config.exists():
                return replace(self, seed=int(folder.read_json(folder.config)["seed"]))
        return self

    def model_config(self, member: int = 0) -> Head:
        """Configuration of the model."""
        sort = "Classifier" if self.target.kind != "numbers" else "Regressor"
        kind: Any = ("Step" if self.target.per_step else "Sequence") + sort
        return Head(self.plan.network, self.target.outputs, kind, self.plan.pool)

    @property
    def training(self) -> Training:
        """Options of the training loop."""
        plan = self.plan
        return Training(
            steps=plan.steps,
            lr=plan.lr,
            schedule=Cosine(warm_up=0.1),
            optimizer="adamw",
            weight_decay=plan.weight_decay,
            clip=None,
            clip_norm=1.0,
            evaluate_every=plan.evaluate_every,
            patience=plan.patience,
            device=self.device,
            threads=self.threads,
            tensorboard=False,
        )

    def split(self, member: int = 0) -> tuple[Array, Array]:
        """Return the indices of training and held-out series: split by group if there are groups, else by class."""
        y = self.data.y if self.target.kind == "classes" and not self.target.per_step else None
        items = np.arange(len(self.data))
        if self.weights is not None:  # what counts for nothing is not there
            items = items[self.weights > 0]
        classes, groups = (None if values is None else values[items] for values in (y, self.data.groups))
        share = 0.0 if groups is not None and len(np.unique(groups)) < 2 else self.plan.validation
        seed = self.member_seed(member)
        held = hold_out(len(items), share, classes=classes, groups=groups, seed=seed, expected=True)
        return items[~held], items[held]

    @cached_property
    def _prepared(self) -> Part:
        """Network inputs and encoded targets of all series, with their weights."""
        assert self.data.y is not None
        weights = None
        if self.weights is not None:
            weights = torch.from_numpy((self.weights / self.weights.mean()).astype(np.float32))
        y = self.target.encode(self.data.y, self.data.lengths)
        return Part([self.preparation(one) for one in self.data.x], y, weights)

    def task(self, member: int = 0) -> SeriesTask:
        """Build the training task of one network of the ensemble."""
        kept, held = self.split(member)
        return SeriesTask(
            self._prepared.select(kept),
            self._prepared.select(held) if len(held) else None,
            kind=self.target.kind,
            per_step=self.target.per_step,
            batch_size=self.plan.batch_size,
            augmentation=self.plan.augmentation,
            masks=self.preparation.input_size - self.preparation.channels,
            label_smoothing=self.plan.label_smoothing,
            class_weights=None if self.class_weights is None else torch.tensor(self.class_weights, dtype=torch.float32),
            seed=self.member_seed(member),
        )

    def estimate(self) -> dict[str, float]:
        """Estimate seconds and bytes of training from two steps on one batch of typical length, then discarded.

        Bytes are those that autograd saves for the backward pass on the longest batch, plus the weights, their
        gradients and the optimiser's two moments.
        """
        from ..runs import new_model

        task, model, plan = self.task(), new_model(self), self.plan
        order = np.random.default_rng(0).permutation(len(task.train.x)).tolist()
        batches = [order[i : i + plan.batch_size] for i in range(0, len(order), plan.batch_size)]
        steps = [max(len(task.train.x[i]) for i in items) for items in batches]
        common = int(np.argmin(np.abs(np.array(steps) - np.mean(steps))))
        batch = task.take("train", batches[common])
        model.train()
        seconds, kept = [], 0
        with torch.random.fork_rng(devices=[]):
            for _ in range(2):
                begun = time.perf_counter()
                with _Saved() as saved:
                    loss = task.loss(model, batch)
                loss.backward()
                seconds.append(time.perf_counter() - begun)
                kept = sum(saved.sizes.values())
        share = float(np.mean(steps)) / steps[common]
        evaluated = task.train if task.validation is None else task.validation
        evaluations = math.ceil(plan.steps / plan.evaluate_every) * len(evaluated.x) / len(task.train.x)
        # An evaluation is a forward pass, about a third of a step
        rounds = plan.steps + evaluations * len(batches) / 3
        parameters = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        largest = max(steps) * min(plan.batch_size, len(task.train.x)) / (steps[common] * len(batches[common]))
        return {
            "seconds": min(seconds) * share * rounds * plan.members,
            "bytes": kept * largest + 4.0 * parameters,
        }


def member_seed(seed: int, member: int) -> int:
    """Seed of one network of an ensemble."""
    return seed if member == 0 else derive_seed(seed, "member", member) >> 16


class _Saved:
    """Sizes of the storages that autograd saves inside this context, in bytes; a shared storage counts once."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
