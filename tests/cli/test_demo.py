"""`indrnn demo`."""

from __future__ import annotations

from pathlib import Path

from .calls import (
    FILES,
    Call,
    assert_done,
    assert_refused,
    contents,
    lines,
    read,
)

# ---- demo


def test_demo(call: Call) -> None:
    for _ in range(2):  # the second takes the place of the first
        said = assert_done(call("demo", "--steps", "2", "--out", "show"))
        out = Path("show")
        assert {path.name for path in out.iterdir()} - {"tensorboard"} == FILES - {"curve.png"}  # of one evaluation
        assert [line["step"] for line in lines(out)] == [2]
        assert f"mean squared error {read(out, 'result.json')['test']['test_mse']:.5f}" in said.out
        assert "curve.png" not in said.out
        assert "0.167" in said.out
        assert_refused(call("train", "adding-100-fast", "--out", out), "holds something already")
    assert_done(call("evaluate", "show"))
    assert [path.name for path in Path().iterdir()] == ["show"]


def test_demo_does_not_take_the_place_of_another_run(finished: Path, call: Call) -> None:
    before = contents(finished)
    assert_refused(call("demo", "--steps", "2", "--out", finished), f"out: {finished} holds something")
    assert contents(finished) == before
