"""The command line, `indrnn`."""

from .main import main

__all__ = ["main"]
