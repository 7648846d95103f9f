"""The command line of the benchmarks: options, errors in one line, files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from indrnn.checks import check_count, check_threads
from indrnn.cli.parse import Parser
from indrnn.system import load_torch, run_as_program
from indrnn.training import RunError
from indrnn.training.folder import RunFolder

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


@dataclass
class VersionOptions(Options):
    """Measure in interleaved rounds, after checking that the results agree, and print tables.

    With `--against`, the two versions take turns in each round. For reliable figures, run nothing else on the machine.
    """

    against: Path | None = None
    """Instead: compare this version with the one installed in the .venv of this checkout; files are named
    NAME-against."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as a program."""

    name: str
    rounds: int
    run: Callable[[Bench], None]
    draw: Callable[[Bench, Path], None] | None = None
    versions: bool = False
    """Whether it can compare two versions (--against)."""

    def __call__(self, arguments: list[str]) -> int:
        """Measure, and write the files."""
        options = parser(self.name, VersionOptions if self.versions else Options)(arguments)
        against = getattr(options, "against", None)
        rounds = 3 if options.quick else AGAINST_ROUNDS if against is not None else self.rounds
        rounds = rounds if options.rounds is None else options.rounds
        check_count("rounds", rounds, least=2)
        if options.threads is not None:
            check_threads(options.threads)
            torch.set_num_threads(options.threads)
        name = self.name if against is None else f"{self.name}-against"
        bench = Bench(name, options.out, usable(options.device), rounds, quick=options.quick)
        command = command_line(self.name, arguments)
        if against is None:
            self._measure(bench, command, options)
        else:
            self._compare(bench, command, against, options)
        return 0

    def _measure(self, bench: Bench, command: str, options: Options) -> None:
        RunFolder(bench.out).prepare()
        torch.manual_seed(0)
        if options.keep_memory:
            keep_memory()
        bench.start()
        self.run(bench)
        bench.write(command)
        if self.draw is not None:
            try:
                self.draw(bench, bench.out / f"{bench.name}.png")
            except ImportError:
                print("no figure was drawn: that needs matplotlib (pip install 'indrnn[report]')")
        print(f"\nkept in {bench.out / bench.name}.json and .md")

    def _compare(self, bench: Bench, command: str, checkout: Path, options: Options) -> None:
        from . import against

        with against.versions(checkout, bench.device, keep_memory=options.keep_memory) as pair:
            RunFolder(bench.out).prepare()
            bench.start()
            against.run(bench, self.name, pair)
            bench.write(command, this=pair.this.about, other=pair.other.about)
        print(f"\nkept in {bench.out / bench.name}.json and .md")


def parser(name: str, options: type) -> Parser:
    """The parser of a program's options."""
    return Parser(f"benchmarks.{name}", options, program="python -m")


def command_line(name: str, arguments: list[str]) -> str:
    """The command that is recorded beside numbers."""
    return shlex.join(["python", "-m", f"benchmarks.{name}", *arguments])


def usable(name: str) -> torch.device:
    """The device of this name, if tensors can be made on it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {name} cannot be used: {str(error).splitlines()[0]}") from None
    return device


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
