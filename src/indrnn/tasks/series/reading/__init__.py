"""Readers of users' series: tables, .npz and .ts files, and folders of sounds."""

from typing import TYPE_CHECKING

from ...._lazy import lazy_names

if TYPE_CHECKING:
    from .options import Reading as Reading
    from .sources import read as read
    from .sources import read_with as read_with
    from .values import MissingPackageError as MissingPackageError

__getattr__, __dir__ = lazy_names(
    __name__, {"options": ("Reading",), "sources": ("read", "read_with"), "values": ("MissingPackageError",)}
)
