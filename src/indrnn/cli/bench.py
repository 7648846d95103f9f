"""The command `indrnn bench`: benchmarks of speed and memory."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
import tyro

from ..checks import check_count
from ..system import keep_memory
from ..training.folder import RunFolder
from .main import UsageError

if TYPE_CHECKING:
    from ..bench.measure import Bench

KINDS = {
    "layer": "training step of a layer, against LSTM, GRU, RNN, SRU, minGRU and Python loops: the paper's figure",
    "network": "training step of the paper's networks, against their matrix products alone",
    "stream": "latency of one step at batch size 1, against PyTorch's cells",
    "scale": "time and memory for growing T, batch size, neurons, layers and threads",
    "loop": "overhead of the training loop over a bare loop, and of the command line over starting Python",
    "skeleton": "sequences per second in training and testing at the shapes of NTU RGB+D, against LSTM",
}
ROUNDS = {"layer": 15, "network": 15, "stream": 20, "scale": 9, "loop": 41, "skeleton": 15}
ROUNDS_AGAINST = 31  # a few per cent are looked for


def bench(arguments: list[str]) -> int:
    """Measure speed and memory."""
    if arguments[:1] in (["--help"], ["-h"]):
        print("usage: indrnn bench {" + ",".join(KINDS) + "} [OPTIONS]\n\nMeasure speed and memory on this machine:\n")
        for kind, about in KINDS.items():
            print(f"  {kind:8} {about}")
        print("\n`indrnn bench layer --help` shows the options, which are the same for all kinds.")
        return 0
    if not arguments or arguments[0] not in KINDS:
        given = f", got {arguments[0]}" if arguments else ""
        raise UsageError(f"bench needs one of {', '.join(KINDS)}{given}")
    kind = arguments[0]

    @dataclass
    class Options:
        """Measure in interleaved rounds, after checking that the results agree, and print tables.

        Tables hold medians over the rounds, with the 20 % and 80 % quantiles, of times and of ratios within a round.
        For reliable figures, run nothing else on the machine.
        """

        out: Path = Path("results/bench")
        """Output folder of the numbers (.json), tables (.md) and figure (.png), named after the benchmark."""
        quick: bool = False
        """Fewer sizes and rounds; takes less than a minute."""
        rounds: int | None = None
        """Rounds of interleaved timing; None for the benchmark's default."""
        device: str = "cpu"
        """Device: cpu, cuda, cuda:1, ..."""
        threads: int | None = None
        """Number of CPU threads; None for PyTorch's default."""
        keep_memory: bool = False
        """Call indrnn.system.keep_memory() first, as `indrnn train` does, for everything measured."""
        against: Path | None = None
        """For layer and network: compare this version with the one installed in the .venv of this checkout only;
        files are named KIND-against."""

    options = tyro.cli(Options, args=arguments[1:], prog=f"indrnn bench {kind}", config=(tyro.conf.FlagCreatePairsOff,))
    usual = ROUNDS[kind] if options.against is None else ROUNDS_AGAINST
    rounds = (3 if options.quick else usual) if options.rounds is None else options.rounds
    check_count("rounds", rounds, least=2)
    if options.threads is not None:
        check_count("threads", options.threads)
        torch.set_num_threads(options.threads)
    device = _usable(options.device)
    command = shlex.join(["indrnn", "bench", *arguments])
    from ..bench import layer, loop, network, scale, skeleton, stream
    from ..bench.measure import Bench

    if options.against is not None:
        measured = Bench(f"{kind}-against", options.out, device, rounds, quick=options.quick)
        _against(measured, kind, options.against, command, options.keep_memory)
        return 0
    RunFolder(options.out).prepare()
    modules: dict[str, ModuleType] = {
        "layer": layer,
        "network": network,
        "stream": stream,
        "scale": scale,
        "loop": loop,
        "skeleton": skeleton,
    }
    torch.manual_seed(0)
    if options.keep_memory:
        keep_memory()
    measured = Bench(kind, options.out, device, rounds, quick=options.quick)
    measured.start()
    modules[kind].run(measured)
    measured.write(command)
    try:
        modules[kind].draw(measured, options.out / f"{kind}.png")
    except ImportError:
        print("no picture was drawn: that needs matplotlib (pip install 'indrnn[report]')")
    print(f"\nkept in {options.out / kind}.json, .md and .png")
    return 0


def _against(measured: Bench, kind: str, checkout: Path, command: str, keep_memory: bool) -> None:
    from ..bench import against

    if kind not in against.CASES:
        raise UsageError(f"against: bench {' and '.join(against.CASES)} compare versions, bench {kind} does not")
    with against.versions(checkout, measured.device, keep_memory=keep_memory) as pair:
        RunFolder(measured.out).prepare()
        measured.start()
        against.run(measured, kind, pair)
        measured.write(command, this=pair.this.about, other=pair.other.about)
    print(f"\nkept in {measured.out / measured.name}.json and .md")


def _usable(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device: {name} cannot be used: {str(error).splitlines()[0]}") from None
    return device
