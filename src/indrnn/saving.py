"""Saving and loading of models: weights in safetensors, configuration in JSON; loading executes no code.

`to_json` and `from_json` are the only way from a configuration to JSON and back.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .baselines import SRU
from .baselines.config import QRNN, Baseline, Transformer
from .files import write_atomically
from .layers import ConvIndRNN1d, ConvIndRNN2d, IndRNN, IndRNNCell, SequenceBatchNorm, SharedDropout, StepBatchNorm
from .layers.bound import RecurrentBound
from .layers.config import ModuleConfig, config_of
from .networks import Dense, Front, Head, Language, LanguageModel, Plain, Residual, TiedEmbedding, WordEmbedding
from .networks.tokeniser import Tokeniser

CONFIGS: dict[str, type] = {
    kind.__name__: kind for kind in (Plain, Residual, Dense, Front, Baseline, QRNN, Transformer, Head, Language)
}
"""Configurations of models, by the name that stands in a file."""

_MODULES: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(IndRNN, IndRNNCell, ConvIndRNN1d, ConvIndRNN2d, SequenceBatchNorm, StepBatchNorm, SharedDropout, SRU),
        *(TiedEmbedding, WordEmbedding, nn.RNN, nn.LSTM, nn.GRU),
    )
}
"""Modules that are built from their constructor's arguments, by the name that stands in a file."""

_MODEL, _WEIGHTS, _TOKENISER = "model.json", "weights.safetensors", "tokeniser.json"


# ---- configurations


def to_json(value: Any, name: str = "config") -> Any:
    """Convert options to JSON types; a dataclass becomes a dictionary with its class's name as "type".

    An error about a part that has no JSON form begins with `name`.
    """
    if isinstance(value, ModuleConfig):
        return {"type": value.kind.__name__, **to_json(value.arguments, name)}
    if is_dataclass(value) and not isinstance(value, type):
        options = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return {"type": type(value).__name__, **to_json(options, name)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{name} must be of JSON's types, a path or a dataclass to be recorded, got {type(value).__name__}")


def from_json(value: Any, types: Mapping[str, type] = CONFIGS) -> Any:
    """Restore a configuration, or other options whose types are given, from the result of `to_json`."""
    if isinstance(value, list):
        return [from_json(item, types) for item in value]
    if not (isinstance(value, dict) and "type" in value):
        return value
    kind = value["type"]
    options = {key: from_json(item, types) for key, item in value.items() if key != "type"}
    if kind in _MODULES:
        return ModuleConfig(_MODULES[kind], options)
    if kind not in types:
        raise ValueError(f"type must be one of {', '.join([*types, *_MODULES])}, got {kind!r}")
    try:
        return types[kind](**options)
    except TypeError as error:  # of another version, or not ours
        raise ValueError(f"{kind} cannot be made of these options: {error}") from None


def defaults(value: Any) -> Any:
    """The result of `to_json` if every field of a dataclass had its default; fields without one are left out."""
    result: dict[str, Any] = {}
    for field in fields(value):
        current = getattr(value, field.name)
        if is_dataclass(current) and not isinstance(current, type):
            result[field.name] = defaults(current)
        elif field.default is not MISSING:
            result[field.name] = to_json(field.default)
        elif field.default_factory is not MISSING:
            result[field.name] = to_json(field.default_factory())
    return result


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a nested dictionary, with dotted names."""
    if not isinstance(value, dict):
        return {prefix: value}
    parts = (flat(item, f"{prefix}.{name}" if prefix else name) for name, item in value.items())
    return {name: item for part in parts for name, item in part.items()}


# ---- models


def save(model: nn.Module, folder: str | Path) -> None:
    """Save a model to a folder, as weights.safetensors and model.json, from which `load` rebuilds it.

    Supported are every layer, network, head and baseline of this package; the tokeniser of a language model, if it has
    one, is saved as tokeniser.json. Each file is written atomically; a model that the folder already holds is replaced.
    A model of another type, or one that was changed since it was built (pruned, wrapped, parametrised), is refused:
    save its `state_dict` with torch.

    Args:
        model: the model.
        folder: destination; created if it does not exist.
    """
    config = _checked_config(model)
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a folder or a new name, and {folder} is a file")
    folder.mkdir(parents=True, exist_ok=True)
    content = {_WEIGHTS: weights_as_bytes(model.state_dict()), _MODEL: as_bytes(to_json(config))}
    tokeniser = getattr(model, "tokeniser", None)
    if isinstance(tokeniser, Tokeniser):
        content[_TOKENISER] = tokeniser.to_json().encode()
    with contextlib.ExitStack() as stack:
        temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in content}
        for name, path in temporary.items():
            stack.callback(path.unlink, missing_ok=True)
            write_atomically(path, content[name])
        for name, path in temporary.items():  # from here on nothing is written, only renamed
            path.replace(folder / name)
        if _TOKENISER not in content:  # of the model that was here before
            (folder / _TOKENISER).unlink(missing_ok=True)


def as_bytes(content: Any) -> bytes:
    """JSON text of a file."""
    return (json.dumps(content, indent=2) + "\n").encode()


def recorded_config(model: nn.Module) -> dict[str, Any] | None:
    """What `load` builds a trained model from: the JSON form of its configuration; None if it has none."""
    try:
        return dict(to_json(_checked_config(model)))
    except TypeError:
        return None


def _checked_config(model: nn.Module) -> Any:
    """Return the configuration from which a model with the same weights is built; raise if there is none."""
    name = type(model).__name__
    problem = f"model must be a layer, network, head or baseline of indrnn to be saved, got {name}"
    try:
        config = config_of(model)
        restored = from_json(json.loads(json.dumps(to_json(config))))
        with torch.device("meta"):
            twin = restored.build()
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(f"{problem} ({error})") from None
    if type(twin) is not type(model):
        raise TypeError(problem)
    if changed := _differences(model.state_dict(), twin.state_dict()):
        raise TypeError(
            f"model must be as it was built to be saved, got a {name} that was changed at {changed[0]}; undo "
            "that (prune.remove, parametrize.remove_parametrizations, ...), or save its state_dict with torch"
        )
    return config


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names that only one of two states has, and those of tensors that differ in shape."""
    differ = [name for name in sorted(one.keys() & other.keys()) if one[name].shape != other[name].shape]
    return sorted(one.keys() ^ other.keys()) + differ


def new_module(folder: Path, device: torch.device | str | None = None) -> nn.Module:
    """Build the model of a folder, with new weights; a language model has its tokeniser."""
    path = _existing(folder, _MODEL)
    try:
        config = from_json(json.loads(path.read_text()))
        if not hasattr(config, "build"):
            raise ValueError(f"it must describe a model of this package, got {type(config).__name__}")
        with torch.device(device) if device is not None else contextlib.nullcontext():
            model: nn.Module = config.build()
        if isinstance(model, LanguageModel) and (path := folder / _TOKENISER).exists():
            model.tokeniser = Tokeniser.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return model


def _existing(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(f"folder must be the folder of a run or a saved model, and {folder} is none")
    if not (folder / name).exists():
        raise FileNotFoundError(
            f"{folder} holds no {name}: the run is not finished, or was of a model that only its own program can build"
        )
    return folder / name


def load_module(folder: str | Path, *, device: torch.device | str = "cpu") -> nn.Module:
    """Load the model that `save` or a finished run has written to a folder, in evaluation mode, with its own dtype."""
    from safetensors import SafetensorError  # where it is used: importing indrnn brings in torch alone
    from safetensors.torch import load_file

    folder = Path(folder)
    model = new_module(folder, "meta")  # nothing is drawn at random, and the file's tensors are taken as they are
    weights = _existing(folder, _WEIGHTS)
    try:
        stored = load_file(weights, device=str(device))
    except SafetensorError as error:
        raise ValueError(f"{weights} cannot be read: {error}") from None
    if wrong := _differences(stored, model.state_dict()):
        raise ValueError(f"{weights} does not fit the model: {', '.join(wrong)}")
    for name, module in model.named_modules():
        if isinstance(module, RecurrentBound):  # which may have been set after the model was built
            module.upper, module.lower = (float(value) for value in stored[f"{name}._extra_state"])
    model.load_state_dict(stored, assign=True)
    return model.eval()


def weights_as_bytes(state: Mapping[str, Any]) -> bytes:
    """Serialise a model's state in safetensors format, without second names of a tensor, as in a user's tied model."""
    from safetensors.torch import save as serialise

    first = {(value.data_ptr(), value.shape): name for name, value in reversed(list(state.items()))}
    once = {name for name, value in state.items() if value.numel() == 0} | set(first.values())
    return serialise({name: value.detach().cpu().contiguous() for name, value in state.items() if name in once})
