"""`indrnn COMMAND ...`: dispatch to the commands, and conversion of errors to one line and an exit code."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys

from ..system import note, out_of_memory, run_as_program

USAGE = """\
usage: indrnn COMMAND [OPTIONS]

Independently Recurrent Neural Networks: the paper's experiments, and your own sequences.

commands:
  demo                 train on the adding problem for a minute, and plot the result
  recipes [WORD ...]   list recipes: place in the paper, parameters, cost
  train RECIPE         train a recipe; `indrnn train RECIPE --help` shows all options
  train --resume RUN   resume a run
  fit DATA             fit a model to your own sequences: .npz, .ts, CSV, Parquet, or WAV files by class
  predict RUN DATA     predict the series of a file with a fitted run
  prepare ntu FOLDER   convert the recordings of NTU RGB+D to the arrays that training reads
  evaluate RUN [DATA]  evaluate the best weights of a run; language models with --dynamic too; fitted runs on DATA
  generate RUN         generate text with a language model, from --prompt or standard input
  report RUN ...       collect runs of a task in small JSON files, a figure and a table; --html FILE: in one page
  analyse KIND         analyse a run's network: memory, weights, gradients, ablation, distillation
  forecast FILE        forecast the next steps of series in a CSV file, with intervals; FOLDER: again, after newer data
  explore RUN          write an HTML page to inspect a run's network neuron by neuron, in any browser
  bench                measure the speed of the layer on this machine, against torch.nn.LSTM
  completion SHELL     print a completion script for bash or zsh

options:
  --help, --version
  --debug              show the traceback of an error

`indrnn COMMAND --help` shows the options of a command.
"""


class UsageError(Exception):
    """A request that cannot be carried out."""


COMMANDS = tuple(
    dict.fromkeys(line.split()[0] for line in USAGE.partition("commands:\n")[2].partition("\n\n")[0].splitlines())
)
"""Names of the commands: functions in modules of the same name, from arguments to the exit code, or None for 0."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; None for the program's own arguments, when it has the process to itself."""
    program = arguments is None
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    message = None
    try:
        code = _dispatch(arguments, program)
    except (UsageError, ValueError, FileNotFoundError) as error:
        if debug:
            raise
        code, message = 2, str(error)
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    except BrokenPipeError:
        code = 1
    except Exception as error:
        from ..training import RunError

        if debug or not (isinstance(error, (RunError, OSError)) or out_of_memory(error)):
            raise
        code, message = 1, " ".join(str(error).split()) or type(error).__name__
    if message is not None:
        note(f"indrnn: {message}")
    _flush()
    sys.exit(code)


def say(text: str) -> None:
    """Print a line; continue if the output is closed."""
    with contextlib.suppress(OSError):
        print(text.encode("utf-8", "backslashreplace").decode(), flush=True)  # a file's name may be no text


def _flush() -> None:
    """Flush the output; redirect a closed one, or Python would end with its own error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(arguments: list[str], program: bool) -> int:
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
    if arguments[0] not in COMMANDS:
        close = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(COMMANDS)}"
        raise UsageError(f"no such command: {arguments[0]}{hint}")
    module = importlib.import_module(f".{arguments[0]}", __package__)
    if program:
        run_as_program()
    code: int | None = getattr(module, arguments[0])(arguments[1:])
    return code or 0
