"""`save` and `load` of models: weights in safetensors, configuration in JSON; loading executes no code."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .baselines import QRNN, SRU, Baseline, Transformer
from .layers import ConvIndRNN1d, ConvIndRNN2d, IndRNN, IndRNNCell, SequenceBatchNorm, SharedDropout, StepBatchNorm
from .layers.bound import RecurrentBound
from .layers.config import ModuleConfig, config_of
from .networks import Dense, Front, Head, Language, LanguageModel, Plain, Residual, TiedEmbedding, WordEmbedding
from .networks.tokeniser import Tokeniser

__all__ = [
    "CONFIGS",
    "QRNN",
    "AnyNetwork",
    "Baseline",
    "Dense",
    "Front",
    "Head",
    "Language",
    "Plain",
    "Residual",
    "Transformer",
    "load",
    "save",
]

AnyNetwork = Plain | Residual | Dense | Baseline | QRNN | Transformer

CONFIGS: dict[str, type] = {
    kind.__name__: kind for kind in (Plain, Residual, Dense, Front, Baseline, QRNN, Transformer, Head, Language)
}
"""The types of options, by the name that stands in a file."""

_MODULES: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(IndRNN, IndRNNCell, ConvIndRNN1d, ConvIndRNN2d, SequenceBatchNorm, StepBatchNorm, SharedDropout, SRU),
        *(TiedEmbedding, WordEmbedding, nn.RNN, nn.LSTM, nn.GRU),
    )
}
"""The modules that are built from their constructor's arguments, by the name that stands in a file."""

_MODEL, _WEIGHTS, _TOKENISER = "model.json", "weights.safetensors", "tokeniser.json"
_ESTIMATOR = "estimator.json"


def to_plain(config: Any) -> Any:
    """Convert a configuration to JSON-serialisable values, with the name of its type."""
    if isinstance(config, ModuleConfig):
        return {"type": config.kind.__name__, **{name: to_plain(value) for name, value in config.arguments.items()}}
    if type(config) in CONFIGS.values():
        return {"type": type(config).__name__, **{f.name: to_plain(getattr(config, f.name)) for f in fields(config)}}
    return [to_plain(item) for item in config] if isinstance(config, (tuple, list)) else config


def from_plain(value: Any, types: dict[str, type] = CONFIGS) -> Any:
    """Restore a configuration, or other options whose types are given, from the result of `to_plain`."""
    if not (isinstance(value, dict) and "type" in value):
        return value
    name = value["type"]
    options = {key: from_plain(item, types) for key, item in value.items() if key != "type"}
    if name in _MODULES:
        return ModuleConfig(_MODULES[name], options)
    if name not in types:
        raise ValueError(f"type must be one of {', '.join([*types, *_MODULES])}, got {name!r}")
    try:
        return types[name](**options)
    except TypeError as error:  # of a later version, or not ours
        raise ValueError(f"{name} cannot be made of these options: {error}") from None


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
    content = {_WEIGHTS: weights_as_bytes(model), _MODEL: (json.dumps(to_plain(config), indent=2) + "\n").encode()}
    tokeniser = getattr(model, "tokeniser", None)
    if isinstance(tokeniser, Tokeniser):
        content[_TOKENISER] = tokeniser.to_json().encode()
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in content}
    try:
        for name, path in temporary.items():
            with path.open("wb") as file:
                file.write(content[name])
                file.flush()
                os.fsync(file.fileno())
        for name, path in temporary.items():
            path.replace(folder / name)
        if _TOKENISER not in content:  # of the model that was here before
            (folder / _TOKENISER).unlink(missing_ok=True)
    finally:
        for path in temporary.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _checked_config(model: nn.Module) -> Any:
    """Return the configuration from which a model with the same weights is built; raise if there is none."""
    name = type(model).__name__
    problem = f"model must be a layer, network, head or baseline of indrnn to be saved, got {name}"
    try:
        config = config_of(model)
        plain = from_plain(json.loads(json.dumps(to_plain(config))))
        with torch.device("meta"):
            twin = plain.build()
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(f"{problem} ({error})") from None
    if type(twin) is not type(model):
        raise TypeError(problem)
    own, other = model.state_dict(), twin.state_dict()
    changed = own.keys() ^ other.keys() or {key for key in own if own[key].shape != other[key].shape}
    if changed:
        raise TypeError(
            f"model must be as it was built to be saved, got a {name} that was changed at {min(changed)}; undo "
            "that (prune.remove, parametrize.remove_parametrizations, ...), or save its state_dict with torch"
        )
    return config


def load(folder: str | Path, *, device: torch.device | str = "cpu") -> Any:
    """Load what `save` or a finished run has written, in evaluation mode and with the dtype it was saved in.

    Args:
        folder: the folder of a run, or any that holds a weights.safetensors and a model.json.
        device: device of the parameters.

    Returns:
        The model. A language model of a run, or saved with its tokeniser, has it as `model.tokeniser`. If an estimator
        was saved in the folder, the estimator: `IndRNNClassifier`, `IndRNNRegressor` or `IndRNNForecaster`.

    Example:
        model = indrnn.load("runs/adding-100")
    """
    folder = Path(folder)
    if (folder / _ESTIMATOR).exists():
        from .tasks.series.files import load_estimator

        return load_estimator(folder, device)
    return load_module(folder, device=device)


def load_module(folder: str | Path, *, device: torch.device | str = "cpu") -> nn.Module:
    """Load the network of a folder, as `load` does, even if an estimator was saved there."""
    from safetensors import SafetensorError  # where it is used: importing indrnn brings in torch alone
    from safetensors.torch import load_file

    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"folder must be the folder of a run or a saved model, and {folder} is none")
    options, weights = folder / _MODEL, folder / _WEIGHTS
    for path in (options, weights):
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} holds no {path.name}: the run is not finished, or was of a model that only its own program "
                "can build"
            )
    try:
        config = from_plain(json.loads(options.read_text()))
        if not hasattr(config, "build"):
            raise ValueError(f"it must describe a model of this package, got {type(config).__name__}")
        with torch.device("meta"):  # nothing is drawn at random, and the file's tensors are taken as they are
            model: nn.Module = config.build()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{options} cannot be read: {error}") from None
    try:
        stored = load_file(weights, device=str(device))
    except SafetensorError as error:
        raise ValueError(f"{weights} cannot be read: {error}") from None
    state = model.state_dict()
    wrong = sorted(stored.keys() ^ state.keys())
    wrong += [name for name in sorted(stored.keys() & state.keys()) if stored[name].shape != state[name].shape]
    if wrong:
        raise ValueError(f"{weights} does not fit the model: {', '.join(wrong)}")
    for name, module in model.named_modules():
        if isinstance(module, RecurrentBound):  # which may have been set after the model was built
            module.upper, module.lower = (float(value) for value in stored[f"{name}._extra_state"])
    model.load_state_dict(stored, assign=True)
    if isinstance(model, LanguageModel):
        model.tokeniser = _tokeniser(folder / _TOKENISER)
    return model.eval()


def _tokeniser(path: Path) -> Tokeniser | None:
    if not path.exists():
        return None
    try:
        return Tokeniser.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def weights_as_bytes(model: nn.Module) -> bytes:
    """Serialise a model's weights in safetensors format."""
    from safetensors.torch import save as as_bytes

    return as_bytes({name: value.detach().cpu().contiguous() for name, value in _unshared(model.state_dict()).items()})


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the tensors of a state that repeat another under a second name, as in a user's own tied model."""
    seen: set[tuple[int, torch.Size]] = set()
    result = {}
    for name, value in state.items():
        key = (value.data_ptr(), value.shape)
        if value.numel() == 0 or key not in seen:
            result[name] = value
        seen.add(key)
    return result
