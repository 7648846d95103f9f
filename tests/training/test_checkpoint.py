"""Checkpoints: what is read is what was written, whatever happened in between."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from indrnn.files import write_atomically
from indrnn.training.checkpoint import BrokenCheckpointError, Checkpoints, load, save

HEADER = len(b"indrnn checkpoint 1\n") + 65


def generation(step: int, best_step: int | None = None) -> dict[str, Any]:
    return {"step": step, "best_step": best_step, "model": {"weight": torch.full((5, 3), float(step))}}


def weights(step: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((7,), float(step))}}


def assert_same(found: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    assert found is not None
    assert found.keys() == expected.keys()
    assert torch.equal(found["model"]["weight"], expected["model"]["weight"])
    assert {k: v for k, v in found.items() if k != "model"} == {k: v for k, v in expected.items() if k != "model"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def fail_to_flush(monkeypatch: pytest.MonkeyPatch, on_call: int = 1) -> None:
    """The disk is full: from the n-th call on, data cannot be flushed."""
    calls, flush = [0], os.fsync

    def fsync(handle: Any) -> None:
        calls[0] += 1
        if calls[0] >= on_call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    monkeypatch.setattr(os, "fsync", fsync)


# ---- one file


def test_round_trip(tmp_path: Path) -> None:
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(7, 5)).sum().backward()
    optimizer.step()
    state: dict[str, Any] = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "numbers": {"float64": torch.randn(3, dtype=torch.float64), "bf16": torch.randn(3).bfloat16()},
        "best": {"accuracy": 0.1 + 0.2},
        "best_step": None,
        "step": 2**40,
    }
    save(tmp_path / "x.ckpt", state)
    found = load(tmp_path / "x.ckpt")
    assert found["best"] == {"accuracy": 0.1 + 0.2}
    assert (found["best_step"], found["step"]) == (None, 2**40)
    for name, tensor in state["model"].items():
        assert torch.equal(found["model"][name], tensor)
    for name, tensor in state["numbers"].items():
        assert found["numbers"][name].dtype == tensor.dtype
        assert torch.equal(found["numbers"][name], tensor)
    other = torch.optim.Adam(torch.nn.Linear(5, 3).parameters())
    other.load_state_dict(found["optimizer"])
    for mine, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
    assert names(tmp_path) == {"x.ckpt"}


def test_truncation_is_detected(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.ckpt", tmp_path / "cut.ckpt"
    save(whole, generation(3))
    content = whole.read_bytes()
    for length in [0, 1, 19, 20, 21, HEADER - 1, HEADER, HEADER + 1, len(content) // 2, len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(BrokenCheckpointError, match=r"cut\.ckpt"):
            load(cut)


def test_what_is_added_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    save(path, generation(3))
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BrokenCheckpointError, match=r"x\.ckpt"):
        load(path)


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_a_flipped_bit_is_detected(tmp_path: Path, bit: int) -> None:
    """Anywhere: at every position of the header, and at many of the rest."""
    path = tmp_path / "x.ckpt"
    save(path, generation(3))
    content = path.read_bytes()
    positions = [*range(HEADER), *range(HEADER, len(content), 37), len(content) - 1]
    unseen = []
    for position in positions:
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        with contextlib.suppress(BrokenCheckpointError):
            load(path)
            unseen.append(position)
    assert unseen == []


def test_another_file_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    torch.save(generation(3), path)
    with pytest.raises(BrokenCheckpointError, match="is not a checkpoint"):
        load(path)


def test_objects_are_not_executed(tmp_path: Path) -> None:
    """A checkpoint of someone else's holds data and no program."""

    class Program:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    save(tmp_path / "x.ckpt", {"model": Program()})
    with pytest.raises(Exception, match="Weights only load failed"):
        load(tmp_path / "x.ckpt")


# ---- atomic


def test_a_file_is_replaced(tmp_path: Path) -> None:
    for content in (b"old", b"", b"new"):
        write_atomically(tmp_path / "x", content)
        assert (tmp_path / "x").read_bytes() == content
        assert names(tmp_path) == {"x"}


@pytest.mark.parametrize("there", [True, False], ids=["over an old file", "a new file"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    path = tmp_path / "x"
    if there:
        path.write_bytes(b"old")
    fail_to_flush(monkeypatch)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(path, b"new content")
    assert raised.value.errno == errno.ENOSPC
    assert names(tmp_path) == ({"x"} if there else set())
    assert not there or path.read_bytes() == b"old"


def test_an_interrupt_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new content")
    assert names(tmp_path) == {"x"}
    assert path.read_bytes() == b"old"


def test_nothing_is_renamed_before_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    replace, flush = os.replace, os.fsync

    def noted_replace(source: Path, target: Path) -> None:
        calls.append(Path(target).name)
        replace(source, target)

    def noted_flush(handle: Any) -> None:
        calls.append("flush")
        flush(handle)

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_flush)
    write_atomically(tmp_path / "x", b"content")
    assert calls == ["flush", "x", "flush"]  # the content, the new name, the folder that holds it
    calls.clear()
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(generation(1))
    assert calls == ["flush", "next.ckpt", "flush", "last.ckpt", "flush"]
    calls.clear()
    checkpoints.save(generation(2))
    assert calls == ["flush", "next.ckpt", "flush", "previous.ckpt", "last.ckpt", "flush"]


# ---- generations


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "run" / "checkpoints")


def again(checkpoints: Checkpoints) -> Checkpoints:
    """As another process sees them."""
    return Checkpoints(checkpoints.folder)


def resumed(checkpoints: Checkpoints) -> tuple[dict[str, Any] | None, list[str]]:
    """What a run that is resumed does."""
    before = {path: path.read_bytes() for path in checkpoints.folder.glob("*")}
    found, problems = checkpoints.newest()
    assert before == {path: path.read_bytes() for path in checkpoints.folder.glob("*")}  # and moves nothing
    checkpoints.set_aside(problems)
    return found, [*problems.values()]


def test_nothing_there(checkpoints: Checkpoints) -> None:
    assert resumed(checkpoints) == (None, [])
    assert not checkpoints.folder.exists()


def test_two_generations(checkpoints: Checkpoints) -> None:
    for step in range(1, 6):
        checkpoints.save(generation(step))
        expected = {"last.ckpt"} if step == 1 else {"last.ckpt", "previous.ckpt"}
        assert names(checkpoints.folder) == expected
        assert_same(load(checkpoints.last), generation(step))
        if step > 1:
            assert_same(load(checkpoints.previous), generation(step - 1))
        found, troubles = resumed(again(checkpoints))
        assert_same(found, generation(step))
        assert troubles == []


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied"])
def test_a_damaged_last_one(checkpoints: Checkpoints, how: str) -> None:
    for step in (1, 2, 3):
        checkpoints.save(generation(step))
    if how == "flipped":
        damage(checkpoints.last)
    else:
        os.truncate(checkpoints.last, 0 if how == "emptied" else checkpoints.last.stat().st_size - 9)
    broken = checkpoints.last.read_bytes()

    later = again(checkpoints)
    found, troubles = resumed(later)
    assert_same(found, generation(2))
    assert len(troubles) == 1
    assert str(checkpoints.last) in troubles[0]
    assert names(checkpoints.folder) == {"last.damaged", "previous.ckpt"}
    assert (checkpoints.folder / "last.damaged").read_bytes() == broken

    later.save(generation(3))
    assert_same(load(checkpoints.last), generation(3))
    assert_same(load(checkpoints.previous), generation(2))  # and not the damaged one


def test_both_damaged(checkpoints: Checkpoints) -> None:
    for step in (1, 2):
        checkpoints.save(generation(step))
    damage(checkpoints.last)
    damage(checkpoints.previous)
    found, troubles = resumed(again(checkpoints))
    assert found is None
    assert all(name in trouble for name, trouble in zip(("last.ckpt", "previous.ckpt"), troubles, strict=True))
    assert names(checkpoints.folder) == {"last.damaged", "previous.damaged"}


def test_a_damaged_previous_one_does_not_matter(checkpoints: Checkpoints) -> None:
    for step in (1, 2):
        checkpoints.save(generation(step))
    damage(checkpoints.previous)
    found, troubles = resumed(again(checkpoints))
    assert_same(found, generation(2))
    assert len(troubles) == 1
    assert str(checkpoints.previous) in troubles[0]


def test_a_full_disk_keeps_both(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        checkpoints.save(generation(step))
    with monkeypatch.context() as full:
        fail_to_flush(full)
        with pytest.raises(OSError, match="No space left"):
            checkpoints.save(generation(3))
        with pytest.raises(OSError, match="No space left"):
            checkpoints.save_best(3, weights(3))
    assert names(checkpoints.folder) == {"last.ckpt", "previous.ckpt"}
    assert_same(load(checkpoints.previous), generation(1))
    assert_same(resumed(again(checkpoints))[0], generation(2))
    checkpoints.save(generation(3))  # there is room again
    assert_same(resumed(again(checkpoints))[0], generation(3))
    assert_same(load(checkpoints.previous), generation(2))


# ---- a process that ended within `save`


def written_next(checkpoints: Checkpoints, state: dict[str, Any]) -> None:
    save(checkpoints.folder / "next.ckpt", state)


def test_ended_before_the_first_rename(checkpoints: Checkpoints) -> None:
    for step in (1, 2):
        checkpoints.save(generation(step))
    written_next(checkpoints, generation(3))
    later = again(checkpoints)
    found, troubles = resumed(later)
    assert_same(found, generation(3))
    assert troubles == []
    assert names(checkpoints.folder) == {"last.ckpt", "previous.ckpt"}
    assert_same(load(checkpoints.last), generation(3))
    assert_same(load(checkpoints.previous), generation(2))


def test_ended_between_the_renames(checkpoints: Checkpoints) -> None:
    for step in (1, 2):
        checkpoints.save(generation(step))
    written_next(checkpoints, generation(3))
    checkpoints.last.replace(checkpoints.previous)
    found, troubles = resumed(again(checkpoints))
    assert_same(found, generation(3))
    assert troubles == []
    assert names(checkpoints.folder) == {"last.ckpt", "previous.ckpt"}
    assert_same(load(checkpoints.last), generation(3))
    assert_same(load(checkpoints.previous), generation(2))


def test_ended_in_the_very_first_save(checkpoints: Checkpoints) -> None:
    checkpoints.folder.mkdir(parents=True)
    written_next(checkpoints, generation(1))
    found, troubles = resumed(again(checkpoints))
    assert_same(found, generation(1))
    assert troubles == []
    assert names(checkpoints.folder) == {"last.ckpt"}


def test_ended_while_writing(checkpoints: Checkpoints) -> None:
    """What was written under its temporary name matters for nothing."""
    checkpoints.save(generation(1))
    (checkpoints.folder / ".next.ckpt.4711.tmp").write_bytes(checkpoints.last.read_bytes()[:99])
    found, troubles = resumed(again(checkpoints))
    assert_same(found, generation(1))
    assert troubles == []


@pytest.mark.parametrize("renamed", [False, True], ids=["before the renames", "between the renames"])
def test_a_damaged_next_one(checkpoints: Checkpoints, renamed: bool) -> None:
    for step in (1, 2):
        checkpoints.save(generation(step))
    written_next(checkpoints, generation(3))
    damage(checkpoints.folder / "next.ckpt")
    if renamed:
        checkpoints.last.replace(checkpoints.previous)
    later = again(checkpoints)
    found, troubles = resumed(later)
    assert_same(found, generation(2))
    assert len(troubles) == 1
    assert "next.ckpt" in troubles[0]
    later.save(generation(3))
    assert_same(load(checkpoints.last), generation(3))
    assert_same(load(checkpoints.previous), generation(2))


def test_a_damaged_last_one_with_a_whole_next_one(checkpoints: Checkpoints) -> None:
    """The newest is resumed from, and the damaged one does not take the place of the good one before it."""
    for step in (1, 2):
        checkpoints.save(generation(step))
    written_next(checkpoints, generation(3))
    damage(checkpoints.last)
    found, troubles = resumed(again(checkpoints))
    assert_same(found, generation(3))
    assert len(troubles) == 1
    assert_same(load(checkpoints.last), generation(3))
    assert_same(load(checkpoints.previous), generation(1))


# ---- best weights


def best_steps(checkpoints: Checkpoints) -> set[int]:
    return {int(path.stem.removeprefix("best-")) for path in checkpoints.folder.glob("best-*.ckpt")}


def test_best_weights_are_kept_while_a_generation_speaks_of_them(checkpoints: Checkpoints) -> None:
    checkpoints.save_best(7, weights(7))
    assert best_steps(checkpoints) == {7}
    checkpoints.save_best(14, weights(14))  # no generation yet: the first ones are forgotten
    assert best_steps(checkpoints) == {14}
    checkpoints.save(generation(15, 14))
    checkpoints.save_best(21, weights(21))
    checkpoints.save_best(28, weights(28))
    assert best_steps(checkpoints) == {14, 28}
    checkpoints.save(generation(29, 28))
    assert best_steps(checkpoints) == {14, 28}  # 14 of the previous one
    checkpoints.save(generation(30, 28))
    assert best_steps(checkpoints) == {28}
    assert_same(load(checkpoints.best(28)), weights(28))


def test_best_weights_of_an_earlier_process(checkpoints: Checkpoints) -> None:
    checkpoints.save_best(7, weights(7))
    checkpoints.save(generation(8, 7))
    checkpoints.save_best(14, weights(14))
    checkpoints.save(generation(15, 14))
    checkpoints.save_best(21, weights(21))  # and it ends here

    later = again(checkpoints)
    found, troubles = resumed(later)
    assert_same(found, generation(15, 14))
    assert troubles == []
    later.save_best(21, weights(21))
    assert best_steps(checkpoints) == {7, 14, 21}
    later.save(generation(22, 21))
    assert best_steps(checkpoints) == {14, 21}
    later.save(generation(23, 21))
    assert best_steps(checkpoints) == {21}


def test_best_weights_that_were_not_read_about_are_kept(checkpoints: Checkpoints) -> None:
    checkpoints.save_best(7, weights(7))
    checkpoints.save(generation(8, 7))
    again(checkpoints).save_best(14, weights(14))
    assert best_steps(checkpoints) == {7, 14}
    assert_same(resumed(again(checkpoints))[0], generation(8, 7))


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_generation_does_not_need_its_best_weights(checkpoints: Checkpoints, how: str) -> None:
    checkpoints.save_best(7, weights(7))
    checkpoints.save(generation(8, 7))
    checkpoints.save_best(14, weights(14))
    checkpoints.save(generation(15, 14))
    damage(checkpoints.best(14)) if how == "damaged" else checkpoints.best(14).unlink()
    found, troubles = resumed(again(checkpoints))
    assert_same(found, generation(15, 14))
    assert troubles == []
    with pytest.raises((BrokenCheckpointError, FileNotFoundError)):
        load(checkpoints.best(14), header_only=True)
    load(checkpoints.best(7), header_only=True)


def test_an_unreadable_one_is_set_aside_and_the_one_before_it_taken(checkpoints: Checkpoints) -> None:
    """A folder in its place: that not even root can read."""
    for step in (1, 2):
        checkpoints.save(generation(step))
    checkpoints.last.unlink()
    checkpoints.last.mkdir()
    (checkpoints.folder / "last.damaged").write_bytes(b"an earlier one")
    later = Checkpoints(checkpoints.folder)
    found, problems = later.newest()
    later.set_aside(problems)
    assert_same(found, generation(1))
    assert [*problems] == [checkpoints.last]
    assert "last.ckpt" in problems[checkpoints.last]
    assert (checkpoints.folder / "last.damaged").read_bytes() == b"an earlier one"
    assert (checkpoints.folder / "last.damaged2").is_dir()


MEMORY = """
import resource, sys, torch
from pathlib import Path
from indrnn.training.checkpoint import load, save
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
path, size = Path(sys.argv[1]), 240_000_000
save(path, {"best_step": None, "x": torch.ones(1000)}), load(path)  # what is imported on the way
if sys.argv[2] == "save":
    state = {"best_step": None, "x": torch.ones(size // 8), "y": torch.ones(size // 8)}
    before = peak()
    save(path, state)
else:
    child = "import sys, torch; from pathlib import Path; from indrnn.training.checkpoint import save; "
    child += "save(Path(sys.argv[1]), {'x': torch.ones(30_000_000), 'y': torch.ones(30_000_000)})"
    import subprocess; subprocess.run([sys.executable, "-c", child, str(path)], check=True)
    before = peak()
    state = load(path)
print((peak() - before) / size)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "most"), [("save", 0.1), ("load", 1.1)])
def test_memory(tmp_path: Path, what: str, most: float) -> None:
    """Saving adds a tenth of a checkpoint's size to the peak at most, loading its size and a tenth."""
    program = [sys.executable, "-c", MEMORY, str(tmp_path / "x.ckpt"), what]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert float(done.stdout) <= most


def test_ended_at_any_point_of_a_save(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """Each state of the folder that a save goes through loads as the generation before or the new one."""
    checkpoints.save_best(7, weights(7))
    checkpoints.save(generation(8, 7))
    checkpoints.save(generation(9, 7))
    shots: list[Path] = []

    def shoot(*_: Any) -> None:
        shots.append(tmp_path / f"shot{len(shots)}")
        shutil.copytree(checkpoints.folder, shots[-1])

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace", "unlink"):
            real = getattr(os, name)

            def call(*args: Any, real: Any = real, **kwargs: Any) -> None:
                shoot()
                real(*args, **kwargs)

            patch.setattr(os, name, call)
        checkpoints.save_best(14, weights(14))
        between = len(shots)
        checkpoints.save(generation(15, 14))
        checkpoints.save(generation(16, 14))
    assert between >= 3
    assert len(shots) >= between + 11
    steps = []
    for shot in shots:
        copy = Checkpoints(shot)
        found, troubles = resumed(copy)
        assert found is not None
        assert troubles == []
        steps.append(found["step"])
        assert_same(found, generation(found["step"], found["best_step"]))
        assert_same(load(copy.best(found["best_step"])), weights(found["best_step"]))
    assert steps == sorted(steps)
    assert set(steps) == {9, 15, 16}
    assert set(steps[:between]) == {9}
