"""The page's engine, run by node."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from indrnn.analysis.explorer.program import program_of

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
const network = new Engine.Network(given.program, Engine.floats(given.numbers));
const runs = given.inputs.map((input) => {
  const before = network.run(Float32Array.from(input));
  const run = given.without ? network.run(Float32Array.from(input), { without: given.without, before }) : before;
  return { T: run.T, answers: Array.from(run.answers), states: run.states.map((state) => Array.from(state)) };
});
console.log(JSON.stringify(runs));
"""


def run(model: nn.Module, inputs: Tensor, without: tuple[int, int] | None = None) -> list[tuple[Tensor, list[Tensor]]]:
    """The engine's answers (T or 1, outputs) and states (T, size) of every layer, for each sequence of (T, B, features)."""
    program = program_of(model)
    given = {
        "program": json.loads(json.dumps(program.plain)),
        "numbers": base64.b64encode(program.array.astype("<f4").tobytes()).decode(),
        "inputs": [inputs[:, b].flatten().tolist() for b in range(inputs.shape[1])],
        "without": None if without is None else {"layer": without[0], "neuron": without[1]},
    }
    outputs = program.output["weight"]["shape"][0]
    result = []
    for each in in_node(RUN, given):
        answers = torch.tensor(each["answers"], dtype=torch.float32).view(-1, outputs)
        result.append((answers, [torch.tensor(state, dtype=torch.float32).view(each["T"], -1) for state in each["states"]]))
    return result


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
