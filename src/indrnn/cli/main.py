"""`indrnn COMMAND ...`: finds the command, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable

USAGE = """\
usage: indrnn COMMAND [OPTIONS]

Independently Recurrent Neural Networks: the paper's experiments, and your own sequences.

commands:
  demo                 learn the adding problem in a minute, and draw what was learnt
  recipes              list every recipe: what it is in the paper, parameters, cost
  train RECIPE         train one; `indrnn train RECIPE --help` shows everything that can be changed
  evaluate RUN         measure the best weights of a run again
  report RUN ...       gather runs of a task into small JSON files, a picture and a table
  analyse KIND         draw how gradients flow: over time and depth in trained runs, or by depth alone
  bench KIND           measure speed and memory here, beside LSTM, GRU, SRU, minGRU and more
  completion SHELL     print a completion script for bash or zsh

options:
  --help, --version
  --debug              show the traceback of an error

`indrnn COMMAND --help` says more of each.
"""


class UsageError(Exception):
    """What was asked for cannot be done."""


def commands() -> dict[str, Callable[[list[str]], int]]:
    """The commands, each called with the arguments after its name."""
    from . import bench, completion, run

    return {
        "demo": run.demo,
        "recipes": run.recipes,
        "train": run.train,
        "evaluate": run.evaluate,
        "report": run.report,
        "analyse": run.analyse,
        "bench": bench.bench,
        "completion": completion.completion,
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = _dispatch(arguments)
    except (UsageError, ValueError, FileNotFoundError) as error:
        if debug:
            raise
        code = _say(error, 2)
    except KeyboardInterrupt:
        code = _say("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        code = 1
    except Exception as error:
        if debug or not _is_run_error(error):
            raise
        code = _say(error, 1)
    sys.exit(code)


def _say(error: object, code: int) -> int:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # of the processes that torchrun started here, one tells
        print(f"indrnn: {error}", file=sys.stderr)
    return code


def _is_run_error(error: Exception) -> bool:
    from ..training import RunError

    return isinstance(error, RunError)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from .. import __version__

        print(f"indrnn {__version__}")
        return 0
    try:
        import rich  # noqa: F401
        import tyro  # noqa: F401
    except ImportError as error:
        raise UsageError(f"the command line needs {error.name}: pip install 'indrnn[cli]'") from None
    known = commands()
    if arguments[0] not in known:
        close = difflib.get_close_matches(arguments[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
        raise UsageError(f"no such command: {arguments[0]}{hint}")
    return known[arguments[0]](arguments[1:])
