"""`indrnn bench`: a table after a check. Timings are not tested."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import indrnn

from .calls import Call, assert_done, assert_refused


def test_a_row_for_each_length(call: Call) -> None:
    threads = torch.get_num_threads()
    said = assert_done(call("bench", "--device", "cpu", "--steps", "7", "1e1", "--rounds", "2")).out
    assert f"torch {torch.__version__}, indrnn {indrnn.__version__}" in said
    assert re.search(r"output and gradients differ from those of the reference by \d\S* at most", said)
    rows = re.findall(
        r"^\| T = (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \[([\d.]+), ([\d.]+)\] \|$", said, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["7", "10"]
    for _, _, _, ratio, low, high in rows:
        assert 0 < float(low) <= float(ratio) <= float(high)
    assert torch.get_num_threads() == threads


def test_wrong_results_are_not_timed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(indrnn.IndRNN):
        def forward(self, *args: Any, **options: Any) -> Any:
            output, state = super().forward(*args, **options)
            return (output, state) if self.backend == "reference" else (output * 1.01, state)

    monkeypatch.setattr("indrnn.layers.IndRNN", Wrong)
    said = call("bench", "--device", "cpu", "--steps", "7", "--rounds", "2")
    assert said.code == 1
    assert "differ from those of the reference by 2e-02: nothing is timed" in said.err
    assert "T = 7" not in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "1"], "rounds must be at least 2, got 1"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--steps"], "number of steps must be at least 1, got 0"),
        (["--device", "abacus"], "device must be auto, cpu, cuda or cuda:NUMBER, got 'abacus'"),
        (["layer"], "Unrecognized options: layer"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(arguments: list[str], message: str, call: Call) -> None:
    assert_refused(call("bench", *arguments), message)
