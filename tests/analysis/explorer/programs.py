"""The page's engine, run by node."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from indrnn.analysis.explorer.program import Program

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed: the page's JavaScript is not run")
SOURCES = files("indrnn.analysis.explorer")


def in_node(body: str, given: Any) -> Any:
    """Run JavaScript with `given` as a variable and the page's modules; what it prints is JSON."""
    assert NODE is not None
    modules = "".join(
        f"const {name} = require({json.dumps(str(SOURCES / file))});\n"
        for name, file in (("Engine", "engine.js"), ("Digits", "digits.js"))
        if (SOURCES / file).is_file()
    )
    script = f"{modules}const given = JSON.parse(require('fs').readFileSync(0, 'utf8'));\n{body}"
    done = subprocess.run([NODE, "-e", script], input=json.dumps(given), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


RUN = """
console.log(JSON.stringify(given.map(({ program, numbers, inputs, without }) => {
  const network = new Engine.Network(program, Engine.floats(numbers));
  return inputs.map((input) => {
    const before = network.run(Float32Array.from(input));
    const run = without ? network.run(Float32Array.from(input), { without, before }) : before;
    return { T: run.T, answers: Array.from(run.answers), states: run.states.map((state) => Array.from(state)) };
  });
})));
"""

Answer = tuple[Tensor, list[Tensor]]
"""Of a sequence: answers (T or 1, outputs), and states (T, size) of every layer."""


def run(
    models: Sequence[nn.Module], inputs: Tensor, without: Sequence[tuple[int, int] | None] | None = None
) -> list[list[Answer]]:
    """What the engine gives for each model and each sequence of (T, B, features); without a neuron, (layer, number)."""
    given = []
    programs = [Program(model) for model in models]
    for program, neuron in zip(programs, without or [None] * len(models), strict=True):
        given.append(
            {
                "program": program.plain,
                "numbers": base64.b64encode(
                    b"".join(part.astype("<f4").tobytes() for part in program.numbers)
                ).decode(),
                "inputs": [inputs[:, b].flatten().tolist() for b in range(inputs.shape[1])],
                "without": None if neuron is None else {"layer": neuron[0], "neuron": neuron[1]},
            }
        )
    sizes = [program.plain["output"]["weight"]["shape"][0] for program in programs]
    return [
        [
            (
                torch.tensor(each["answers"], dtype=torch.float32).view(-1, outputs),
                [torch.tensor(state, dtype=torch.float32).view(each["T"], -1) for state in each["states"]],
            )
            for each in answers
        ]
        for outputs, answers in zip(sizes, in_node(RUN, given), strict=True)
    ]


def settled(model: nn.Module, inputs: Tensor) -> nn.Module:
    """A model in evaluation whose parameters and statistics are all of their own."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.train()
    for _ in range(3):
        model(inputs)
    return model.eval()
