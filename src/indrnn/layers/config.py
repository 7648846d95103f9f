"""The configuration of a module, as data: its type and the arguments of its constructor."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import nn

from .bound import RecurrentBound

_OF_TORCH = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
"""Arguments that torch.nn.RNN, LSTM and GRU share, which their signatures do not name."""


@dataclass(frozen=True)
class ModuleConfig:
    """A module's type and its constructor's arguments; modules among these are configurations too."""

    kind: type[nn.Module]
    arguments: dict[str, Any]

    def build(self, **factory: Any) -> nn.Module:
        """The module, with new weights; `device` and `dtype` if it takes them, by name or as `**factory`."""
        arguments = {name: v.build(**factory) if hasattr(v, "build") else v for name, v in self.arguments.items()}
        takes = inspect.signature(self.kind).parameters
        both = issubclass(self.kind, nn.RNNBase) or "factory" in takes
        return self.kind(**arguments, **{k: v for k, v in factory.items() if both or k in takes})


def config_of(module: nn.Module) -> Any:
    """The configuration that rebuilds a module with `build()`: the one that it holds, or a `ModuleConfig`.

    Device and type of the parameters are not included.
    """
    config = getattr(module, "config", None)
    if is_dataclass(config):
        return config
    names = list(_OF_TORCH) if isinstance(module, nn.RNNBase) else _arguments(type(module))
    if isinstance(module, nn.RNN):
        names.append("nonlinearity")
    if isinstance(module, nn.LSTM):
        names.append("proj_size")
    values = {name: _value(name, getattr(module, name)) for name in names}
    bound = getattr(module, "bound", None)
    options = bound.options if isinstance(bound, RecurrentBound) else {}
    return ModuleConfig(type(module), {**values, **options})


def _arguments(kind: type[nn.Module]) -> list[str]:
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.kind not in variadic and p.name not in ("device", "dtype")]


def _value(name: str, value: Any) -> Any:
    if name == "bias":  # an option, or the parameter that it made
        return value if isinstance(value, bool) else value is not None
    return config_of(value) if isinstance(value, nn.Module) else value


def describe(layer: Any, kind: type[nn.Module]) -> str:
    """The sizes of a recurrent layer of this kind, and its options that are not at their defaults: its `extra_repr`."""
    texts, parameters = [], inspect.signature(kind).parameters
    for name in _arguments(kind):
        value, default = _value(name, getattr(layer, name)), parameters[name].default
        if default is inspect.Parameter.empty and isinstance(value, int):
            texts.append(str(value))
        elif value != default and value != (default,) * len(value if isinstance(value, tuple) else ()):
            texts.append(f"{name}={value!r}")
    starts = ((name, layer.bound.options.get(name)) for name in ("long_memory", "highest_start"))
    return ", ".join([*texts, *(f"{name}={value!r}" for name, value in starts if value)])
