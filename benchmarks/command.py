"""The command line of the benchmarks: options, errors in one line, files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from indrnn.checks import check_count, check_threads
from indrnn.cli.parse import parse
from indrnn.system import load_torch, run_as_program
from indrnn.training import RunError
from indrnn.training.folder import RunFolder
from indrnn.training.parallel import choose_device

from .against import CASES, compare, versions
from .measure import Bench
from .worker import keep_memory

AGAINST_ROUNDS = 31  # a few per cent are looked for


@dataclass
class Options:
    """Measure in interleaved rounds, after checking that the results agree, and print tables.

    Tables hold medians over the rounds, with the 20 % and 80 % quantiles, of times and of ratios within a round.
    For reliable figures, run nothing else on the machine.
    """

    out: Path = Path("results/bench")
    """Output folder of the numbers (.json), the tables (.md) and, for layer and scale, a figure (.png)."""
    quick: bool = False
    """Fewer sizes and rounds; takes less than a minute."""
    rounds: int | None = None
    """Rounds of interleaved timing; None for the benchmark's default."""
    device: str = "cpu"
    """Device: cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""
    keep_memory: bool = False
    """Keep freed memory in the process, as `indrnn train` does, for everything measured."""
    against: Path | None = None
    """For layer and network: compare this version with the one installed in the .venv of this checkout instead; files
    are named NAME-against."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as a program."""

    name: str
    rounds: int
    run: Callable[[Bench], None]
    draw: Callable[[Bench, Path], None] | None = None

    def __call__(self, arguments: list[str]) -> int:
        """Measure, and write the files."""
        options: Options = options_of(self.name, Options, arguments)
        if options.against is not None and self.name not in CASES:
            raise ValueError(f"against: {' and '.join(CASES)} compare versions, {self.name} does not")
        rounds = 3 if options.quick else self.rounds if options.against is None else AGAINST_ROUNDS
        rounds = rounds if options.rounds is None else options.rounds
        check_count("rounds", rounds, least=2)
        if options.threads is not None:
            check_threads(options.threads)
            torch.set_num_threads(options.threads)
        device, command = choose_device(options.device), command_line(self.name, arguments)
        about: dict[str, object] = {}
        with ExitStack() as stack:
            if options.against is None:
                bench, run = Bench(self.name, options.out, device, rounds, quick=options.quick), self.run
            else:
                bench = Bench(f"{self.name}-against", options.out, device, rounds, quick=options.quick)
                pair = stack.enter_context(versions(options.against, device, keep_memory=options.keep_memory))
                about = {name: version.about for name, version in pair._asdict().items()}
                run = partial(compare, name=self.name, pair=pair)
            RunFolder(bench.out).prepare()
            torch.manual_seed(0)
            if options.keep_memory:
                keep_memory()
            bench.start()
            run(bench)
            bench.write(command, **about)
        if self.draw is not None and options.against is None:
            try:
                self.draw(bench, bench.out / f"{bench.name}.png")
            except ImportError:
                print("no figure was drawn: that needs matplotlib (pip install 'indrnn[report]')")
        print(f"\nkept in {bench.out / bench.name}.json and .md")
        return 0


def options_of(name: str, kind: type, arguments: list[str]) -> Any:
    """The options of a program."""
    return parse(f"benchmarks.{name}", kind, arguments, program="python -m")


def command_line(name: str, arguments: list[str]) -> str:
    """The command that is recorded beside numbers."""
    return shlex.join(["python", "-m", f"benchmarks.{name}", *arguments])


def start(program: Callable[[list[str]], int], arguments: list[str] | None = None) -> NoReturn:
    """Run a program and exit; what is wrong with its arguments, or with a process of it, is said in one line.

    Denormal numbers are taken as zero where it has the process to itself, as `indrnn` takes them.
    """
    if arguments is None:
        run_as_program()
        load_torch()
    try:
        sys.exit(program(sys.argv[1:] if arguments is None else arguments))
    except (ValueError, FileNotFoundError) as error:
        message, code = str(error), 2
    except RunError as error:
        message, code = str(error), 1
    except KeyboardInterrupt:
        message, code = "interrupted", 130
    print(f"benchmarks: {message}", file=sys.stderr)
    sys.exit(code)
