"""Saving and loading estimators: estimator.json next to the networks' files, which `indrnn.load` reads."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from ...files import write_atomically
from ...layers.bound import RecurrentBound
from ...layers.config import config_of
from ...saving import from_json, load_module, save, to_json, weights_as_bytes
from .defaults import Augmentation, Plan
from .preparation import Preparation
from .targets import Target

if TYPE_CHECKING:
    from .estimator import Estimator

FILE = "estimator.json"


def save_estimator(estimator: Estimator, folder: Path) -> None:
    """Save a fitted estimator: its networks go into the folder, or into its member-NUMBER folders if several."""
    from .estimator import plain_parameters

    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a folder or a new name, and {folder} is a file")
    folder.mkdir(parents=True, exist_ok=True)
    for path, model in zip(_homes(folder, len(estimator.models_)), estimator.models_, strict=True):
        save(model, path)
    content = {
        "type": type(estimator).__name__,
        "parameters": plain_parameters(estimator.get_params()),
        "members": len(estimator.models_),
        "features": estimator.n_features_in_,
        "flat": getattr(estimator, "flat_", False),
        "feature_names": getattr(estimator, "feature_names_in_", np.empty(0)).tolist(),
        "channels": list(estimator.channels_),
        "preparation": estimator.preparation_.to_plain(),
        "target": estimator.target_.to_plain(),
        "plan": estimator.plan_.to_plain(),
        "extra": estimator.extra_state(),
    }
    write_atomically(folder / FILE, (json.dumps(content, indent=2) + "\n").encode())


def _homes(folder: Path, members: int) -> list[Path]:
    return [folder] if members == 1 else [folder / f"member-{member}" for member in range(members)]


def load_estimator(folder: Path, device: Any = "cpu") -> Any:
    """Load an estimator saved by `save_estimator`."""
    from .estimators import IndRNNClassifier, IndRNNRegressor
    from .forecaster import IndRNNForecaster

    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kinds = {kind.__name__: kind for kind in (IndRNNClassifier, IndRNNRegressor, IndRNNForecaster)}
        parameters = content["parameters"]
        if isinstance(parameters.get("class_weight"), list):
            parameters["class_weight"] = dict(parameters["class_weight"])
        estimator: Any = kinds[content["type"]](**parameters)
        models = [load_module(home, device=device) for home in _homes(folder, content["members"])]
        estimator.models_ = models
        estimator.results_ = []
        estimator.n_features_in_ = content["features"]
        estimator.flat_ = content["flat"]
        if content.get("feature_names"):
            estimator.feature_names_in_ = np.asarray(content["feature_names"], dtype=object)
        estimator.channels_ = tuple(content["channels"])
        estimator.preparation_ = Preparation.from_plain(content["preparation"])
        estimator.target_ = Target.from_plain(content["target"])
        planned = content["plan"] | {"augmentation": Augmentation(**content["plan"]["augmentation"])}
        names = {field.name for field in fields(Plan)}
        network = models[0].config.network  # type: ignore[union-attr]
        estimator.plan_ = Plan(network=network, **{key: v for key, v in planned.items() if key in names})
        estimator.set_extra_state(content["extra"])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    return estimator


def models_as_plain(models: list[nn.Module]) -> list[tuple[Any, bytes]]:
    """Return networks in picklable form: configuration and weights."""
    return [(to_json(config_of(model)), weights_as_bytes(model.state_dict())) for model in models]


def models_from_plain(plain: list[tuple[Any, bytes]]) -> list[nn.Module]:
    """Rebuild networks from what `models_as_plain` returned."""
    from safetensors.torch import load

    models = []
    for config, weights in plain:
        model: nn.Module = from_json(config).build()
        state = load(weights)
        for name, module in model.named_modules():
            if isinstance(module, RecurrentBound):
                module.upper, module.lower = (float(value) for value in state[f"{name}._extra_state"])
        model.load_state_dict(state)
        models.append(model.eval())
    return models
