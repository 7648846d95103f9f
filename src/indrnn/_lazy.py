"""Lazy imports: packages whose names are imported when they are first used, and modules likewise.

So `import indrnn`, the options of networks and the help of the command line need no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Collection[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose public names and modules are imported at their first use.

    `homes` has the public names that each module defines, by the module's name. No public name may be that of a module
    in the package: once imported, the module would take its place.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in home_of:
            value = getattr(import_module(f".{home_of[name]}", package), name)
        elif not name.startswith("__") and find_spec(f".{name}", package) is not None:
            value = import_module(f".{name}", package)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(sys.modules[package]), *home_of})

    return __getattr__, __dir__


class Lazy:
    """A module that is imported when one of its attributes is first read.

    For modules of options, beside `if TYPE_CHECKING: import torch`. What runs at each step, or is compiled, imports
    torch itself: a compiler does not see through this.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = import_module(self._name)
        return getattr(self._module, attribute)

    def __repr__(self) -> str:
        return f"Lazy({self._name!r})"
