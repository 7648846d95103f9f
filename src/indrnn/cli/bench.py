"""The command `indrnn bench`: measurements of speed and memory."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
import tyro

from ..memory import keep_memory
from ..training.folder import RunFolder
from ..training.options import check_count
from .main import UsageError

if TYPE_CHECKING:
    from ..bench.measure import Bench

KINDS = {
    "layer": "training steps of a layer beside LSTM, GRU, RNN, SRU, minGRU and Python loops: the paper's figure",
    "network": "training steps of the paper's networks beside their matrix products alone",
    "stream": "latency of one step at batch 1, beside torch's cells",
    "scale": "time and memory as T, batch, neurons, layers and threads grow",
    "loop": "what the training loop adds to a bare one, and the command line to the start of Python",
    "skeleton": "sequences a second in training and testing at the shapes of NTU RGB+D, beside LSTM",
    "parse": "MB/s of reading skeleton files of NTU RGB+D, beside numpy.loadtxt and plain Python",
}
ROUNDS = {"layer": 15, "network": 15, "stream": 20, "scale": 9, "loop": 41, "skeleton": 15, "parse": 15}
ROUNDS_AGAINST = 31  # a few per cent are looked for


def bench(arguments: list[str]) -> int:
    """Measure speed and memory."""
    if arguments[:1] in (["--help"], ["-h"]):
        print("usage: indrnn bench {" + ",".join(KINDS) + "} [OPTIONS]\n\nMeasure speed and memory on this machine:\n")
        for kind, about in KINDS.items():
            print(f"  {kind:8} {about}")
        print("\n`indrnn bench layer --help` shows the options, which are the same for all.")
        return 0
    if not arguments or arguments[0] not in KINDS:
        given = f", got {arguments[0]}" if arguments else ""
        raise UsageError(f"bench needs one of {', '.join(KINDS)}{given}")
    kind = arguments[0]

    @dataclass
    class Options:
        """Measure in interleaved rounds, after a check that the results agree; prints tables.

        Medians over the rounds, with the quantiles of 20 % and 80 %, of times and of ratios within a round. For figures
        to rely on, nothing else runs on the machine.
        """

        out: Path = Path("results/bench")
        """Where the numbers (.json), the tables (.md) and the figure (.png) go, under the name of the benchmark."""
        quick: bool = False
        """Fewer sizes and rounds: less than a minute."""
        rounds: int | None = None
        """Rounds of interleaved timing; a number that suits the benchmark if none is given."""
        device: str = "cpu"
        """cpu, cuda, cuda:1, ..."""
        threads: int | None = None
        """CPU threads; as many as torch takes if none is given."""
        keep_memory: bool = False
        """Call indrnn.memory.keep_memory() first, as `indrnn train` does: for all that is measured alike."""
        against: Path | None = None
        """For layer and network: measure this version beside the one installed in the .venv of this checkout, nothing
        else; files are named KIND-against."""

    options = tyro.cli(Options, args=arguments[1:], prog=f"indrnn bench {kind}", config=(tyro.conf.FlagCreatePairsOff,))
    usual = ROUNDS[kind] if options.against is None else ROUNDS_AGAINST
    rounds = (3 if options.quick else usual) if options.rounds is None else options.rounds
    check_count("rounds", rounds, least=2)
    if options.threads is not None:
        check_count("threads", options.threads)
        torch.set_num_threads(options.threads)
    device = _usable(options.device)
    command = shlex.join(["indrnn", "bench", *arguments])
    from ..bench import layer, loop, network, parse, scale, skeleton, stream
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
        "parse": parse,
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
