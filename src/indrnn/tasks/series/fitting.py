"""`Fitting`: one fit's interpreted data, its plan and its training."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from ...networks.config import Head
from ...training import Cosine, Listener, Result, RunFolder, Training, derive_seed, train
from .collection import Array, Collection
from .defaults import Plan
from .preparation import Preparation
from .targets import Target
from .task import Part, SeriesTask


@dataclass(frozen=True, eq=False)
class Fitting:
    """Data and settings of a fit, except its output folder."""

    data: Collection
    """The series that are trained on, those held back included."""
    preparation: Preparation
    target: Target
    plan: Plan
    seed: int
    weights: Array | None = None
    """(n,), of the series."""
    class_weights: Array | None = None
    """(classes,)."""
    device: str = "auto"
    threads: int | None = None

    @property
    def head(self) -> Head:
        """The configuration of the model."""
        sort = "Classifier" if self.target.kind != "numbers" else "Regressor"
        kind: Any = ("Step" if self.target.per_step else "Sequence") + sort
        return Head(self.plan.network, self.target.outputs, kind, self.plan.pool)

    def member_seed(self, member: int) -> int:
        """The seed of one network of the ensemble."""
        return self.seed if member == 0 else derive_seed(self.seed, "member", member) >> 16

    def going_on(self, out: str | Path | None) -> Fitting:
        """Return a copy with the seed of the run in the folder `out`, if there is one."""
        for home in () if out is None else (Path(out), Path(out) / "member-0"):
            folder = RunFolder(home)
            if folder.config.exists():
                return replace(self, seed=int(folder.read_json(folder.config)["seed"]))
        return self

    def model(self, member: int = 0) -> nn.Module:
        """Build a network with newly initialised weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.member_seed(member))
            return self.head.build()

    def split(self, member: int = 0) -> tuple[Array, Array]:
        """Return the indices of training and held-out series: split by group if there are groups, else by class."""
        y = self.data.y if self.target.kind == "classes" and not self.target.per_step else None
        items = np.arange(len(self.data))
        if self.weights is not None:  # what counts for nothing is not there
            items = items[self.weights > 0]
        classes, groups = (None if each is None else each[items] for each in (y, self.data.groups))
        kept, held = split(len(items), self.plan.validation, classes, groups, self.member_seed(member))
        return items[kept], items[held]

    def task(self, member: int = 0) -> SeriesTask:
        """Build the training task of one network of the ensemble."""
        assert self.data.y is not None
        x = [self.preparation(one) for one in self.data.x]
        y = self.target.encode(self.data.y, self.data.lengths)
        weights = None
        if self.weights is not None:
            weights = torch.from_numpy((self.weights / self.weights.mean()).astype(np.float32))

        def part(items: Array) -> Part:
            chosen = None if weights is None else weights[torch.from_numpy(items)]
            return Part([x[i] for i in items], [y[i] for i in items], chosen)

        kept, held = self.split(member)
        return SeriesTask(
            part(kept),
            part(held) if len(held) else None,
            kind=self.target.kind,
            per_step=self.target.per_step,
            batch_size=self.plan.batch_size,
            augmentation=self.plan.augmentation,
            masks=self.preparation.input_size - self.preparation.channels,
            label_smoothing=self.plan.label_smoothing,
            class_weights=None if self.class_weights is None else torch.tensor(self.class_weights, dtype=torch.float32),
            seed=self.member_seed(member),
        )

    @property
    def options(self) -> Training:
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

    def estimate(self) -> dict[str, float]:
        """Estimate seconds and bytes of training from two steps on one batch of typical length, then discarded.

        Bytes are those that autograd saves for the backward pass on the longest batch, plus the weights, their
        gradients and the optimiser's two moments.
        """
        task, model, plan = self.task(), self.model(), self.plan
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
                kept = saved.bytes
        share = float(np.mean(steps)) / steps[common]
        evaluated = task.train if task.validation is None else task.validation
        evaluations = math.ceil(plan.steps / plan.evaluate_every) * len(evaluated.x) / len(task.train.x)
        # An evaluation is a forward pass, about a third of a step
        rounds = plan.steps + evaluations * len(batches) / 3
        parameters = sum(each.numel() * each.element_size() for each in model.parameters())
        largest = max(steps) * min(plan.batch_size, len(task.train.x)) / (steps[common] * len(batches[common]))
        return {
            "seconds": min(seconds) * share * rounds * plan.members,
            "bytes": kept * largest + 4.0 * parameters,
        }

    def train(
        self,
        *,
        out: str | Path | None = None,
        resume: bool = False,
        overwrite: bool = False,
        listeners: Iterable[Listener] = (),
        config: dict[str, Any] | None = None,
        resume_command: str | None = None,
        quiet: bool = True,
    ) -> tuple[list[nn.Module], list[Result]]:
        """Train each network of the ensemble: in `out`, or in its member-NUMBER folders if there are several."""
        models, results = [], []
        if resume and overwrite:
            raise ValueError("resume and overwrite cannot both be asked for")
        if out is not None and overwrite:
            clear_run(Path(out))
        for member in range(self.plan.members):
            model, task = self.model(member), self.task(member)
            seed = self.member_seed(member)
            home = None if out is None else Path(out) if self.plan.members == 1 else Path(out) / f"member-{member}"
            result = train(
                model,
                task,
                self.options,
                out=home,
                seed=seed,
                resume=resume,
                overwrite=overwrite,
                config=config,
                resume_command=resume_command,
                listeners=listeners,
                quiet=quiet or home is None,
            )
            models.append(model.cpu().eval())
            results.append(result)
            if not result.finished:
                break
        return models, results


def members_of(run: Path) -> list[Path]:
    """Return the folders of an ensemble's networks in its folder, in order; none for a single network."""
    found = [path for path in run.glob("member-*") if re.fullmatch(r"member-\d+", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


def clear_run(out: Path) -> None:
    """Remove the files of an earlier fit, of any number of networks, from a folder, and nothing else."""
    found = [RunFolder(home) for home in (out, *members_of(out))]
    ours = [
        folder
        for folder in found
        if (folder.config.exists() or folder.checkpoints.folder.exists() or (folder.path / "estimator.json").exists())
        and folder.used
    ]
    with contextlib.ExitStack() as locks:
        for folder in ours:  # all of them, before any is cleared
            locks.enter_context(folder.locked())
        for folder in ours:
            folder.clear()


class _Saved:
    """Count the bytes of tensors that autograd saves inside this context; a shared storage counts once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda each: each)

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)


def split(count: int, share: float, y: Array | None, groups: Array | None, seed: int) -> tuple[Array, Array]:
    """Split the indices of series into those to train on and those to hold out.

    Args:
        count: number of series.
        share: fraction held out.
        y: their classes, (n,): about this fraction of each is held out, and at least one remains; None to ignore them.
        groups: (n,): whole groups are held out; `y` is then ignored.
        seed: seed of the random choice.
    """
    everything = np.arange(count)
    if not share:
        return everything, everything[:0]
    draw = np.random.default_rng(seed % 2**63)
    if groups is not None:
        known = np.unique(groups)
        chosen = draw.permutation(known)[: min(len(known) - 1, max(1, round(share * len(known))))]
        held = np.isin(groups, chosen)
        return everything[~held], everything[held]
    held = np.zeros(count, dtype=bool)
    members = [everything] if y is None else [np.flatnonzero(y == each) for each in np.unique(y)]
    for of_class in members:
        wanted = share * len(of_class)
        number = min(len(of_class) - 1, int(wanted) + int(draw.random() < wanted - int(wanted)))
        held[draw.permutation(of_class)[:number]] = True
    return everything[~held], everything[held]
