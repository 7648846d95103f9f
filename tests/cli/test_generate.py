"""`indrnn generate`."""

from __future__ import annotations

import io
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import indrnn
from indrnn import LanguageModel

from .calls import TEXT, Call, assert_done, assert_refused, contents, train_text

Runs = Callable[[str], Path]


def typed(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def expected(run: Path, prompt: str, length: int, **options: Any) -> str:
    """The text from the model's own method."""
    model = indrnn.load(run)
    assert isinstance(model, LanguageModel)
    assert model.tokeniser is not None
    ids = model.tokeniser.encode(prompt)
    drawn = model.generate(ids, length, **{"temperature": 0.8, **options})
    return model.tokeniser.decode([*ids.tolist(), *drawn.tolist()])


@pytest.mark.parametrize("unit", ["char", "word", "byte"])
def test_it_writes_what_the_model_generates(unit: str, language_runs: Runs, call: Call) -> None:
    run = language_runs(unit)
    before = contents(run)
    plain = assert_done(call("generate", run, "--prompt", "the cat", "--length", "30")).out
    text = expected(run, "the cat", 30)
    assert plain == text + ("" if text.endswith("\n") else "\n")
    options = {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "seed": 3}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    other = assert_done(call("generate", run, "--prompt", "the cat", "--length", "30", *words)).out
    assert other.rstrip("\n") == expected(run, "the cat", 30, **options).rstrip("\n")
    assert other != plain
    assert contents(run) == before


@pytest.mark.parametrize(
    ("unit", "content", "prompt"),
    [
        ("char", b"\xef\xbb\xbfthe\r\ncat\r\n", "the\ncat"),
        ("byte", b"the\r\ncat\r\n", "the\r\ncat"),
        ("byte", b"the cat\r", "the cat\r"),
    ],
)
def test_line_ends_are_kept_where_the_model_knows_them(
    unit: str, content: bytes, prompt: str, language_runs: Runs, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = language_runs(unit)
    typed(content, monkeypatch)
    said = assert_done(call("generate", run, "--length", "9")).out
    assert said.rstrip("\n") == expected(run, prompt, 9).rstrip("\n")


def test_a_seed_of_more_than_64_bits(language_runs: Runs, call: Call) -> None:
    said = call("generate", language_runs("char"), "--prompt", "the", "--seed", str(2**64))
    assert_refused(said, "seed must be a whole number of 64 bits")


def test_the_default_is_200_tokens_and_none_is_the_prompt(language_runs: Runs, call: Call) -> None:
    run = language_runs("char")
    said = assert_done(call("generate", run, "--prompt", "the")).out
    assert len(said.removesuffix("\n")) in (202, 203)  # a newline of its own is not doubled
    assert assert_done(call("generate", run, "--prompt", "the", "--length", "0")).out == "the\n"


@pytest.mark.parametrize("arguments", [[], ["--prompt", "-"]], ids=["none", "dash"])
def test_a_prompt_on_standard_input(
    arguments: list[str], language_runs: Runs, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = language_runs("char")
    typed(b"the cat\n", monkeypatch)  # as `echo` has it
    said = assert_done(call("generate", run, *arguments, "--length", "20")).out
    assert said == assert_done(call("generate", run, "--prompt", "the cat", "--length", "20")).out
    typed(b"the cat\r\nsat\r\n", monkeypatch)
    assert assert_done(call("generate", run, *arguments, "--length", "0")).out == "the cat\nsat\n"


def test_each_token_is_printed_as_it_is_drawn(
    language_runs: Runs, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in between leaves what was drawn on the screen, with its newline, and no message."""
    run = language_runs("char")
    whole = assert_done(call("generate", run, "--prompt", "the cat", "--temperature", "1", "--length", "40")).out
    stream, seen = LanguageModel.stream, []

    def interrupted(self: LanguageModel, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        for count, token in enumerate(stream(self, *args, **kwargs)):
            if count == 25:
                seen.append(capsys.readouterr().out)
                signal.raise_signal(signal.SIGINT)
            yield token

    monkeypatch.setattr(LanguageModel, "stream", interrupted)
    said = call("generate", run, "--prompt", "the cat", "--temperature", "1", "--length", "40")
    assert seen == [whole[: 7 + 25]]
    assert said.code == 130
    assert said.err == ""
    assert said.out == ("" if seen[0].endswith("\n") else "\n")


@pytest.mark.slow
def test_a_pipe_that_closes(language_runs: Runs) -> None:
    command = [sys.executable, "-m", "indrnn", "generate", str(language_runs("char")), "--prompt", "the cat"]
    done = subprocess.Popen([*command, "--length", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout is not None
    assert done.stderr is not None
    assert done.stdout.read(7) == b"the cat"
    done.stdout.close()
    assert done.stderr.read() == b""
    done.stderr.close()
    assert done.wait() == 1


def test_an_unfinished_run_writes_with_its_best_weights(
    language_runs: Runs, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its text, which may be elsewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    out = tmp_path / "run"
    assert_done(call(*train_text("char"), "--text", text, "--out", out))
    finished = assert_done(call("generate", out, "--prompt", "the")).out
    text.unlink()
    for name in ("result.json", "weights.safetensors"):
        (out / name).unlink()
    said = call("generate", out, "--prompt", "the")
    assert said.code == 0
    assert said.out == finished
    assert re.fullmatch(r"indrnn: with the best weights so far, of step \d+ \(the run is not finished\)\n", said.err)
    (out / "tokeniser.json").unlink()
    assert_refused(call("generate", out, "--prompt", "the"), f"{out} holds no tokeniser.json")
    shutil.rmtree(out / "checkpoints")
    assert_refused(call("generate", out, "--prompt", "the"), "holds no weights and no checkpoint")


def test_a_saved_model_writes_too(language_runs: Runs, call: Call, tmp_path: Path) -> None:
    run = language_runs("word")
    indrnn.save(indrnn.load(run), tmp_path / "saved")
    said = [assert_done(call("generate", folder, "--prompt", "the cat")).out for folder in (run, tmp_path / "saved")]
    assert said[0] == said[1]
    (tmp_path / "saved" / "tokeniser.json").unlink()
    assert_refused(call("generate", tmp_path / "saved", "--prompt", "a"), "holds no tokeniser.json")


# ---- what is refused


@pytest.mark.parametrize(
    ("unit", "prompt", "parts"),
    [
        ("char", "the\ndog", ["prompt holds a character", "'g' at line 2, column 3", "1 in all"]),
        ("word", "the dog", ["prompt holds a word", "'dog' at line 1, column 5"]),
        ("char", "", ["prompt must hold at least one token", "got ''"]),
        ("word", " ", ["prompt must hold at least one token", "got ' '"]),
        ("byte", "\udcff", ["prompt must be UTF-8 text"]),
    ],
    ids=["character", "word", "empty", "no word", "no text"],
)
def test_a_prompt_that_cannot_be_read(
    unit: str, prompt: str, parts: list[str], language_runs: Runs, call: Call
) -> None:
    said = call("generate", language_runs(unit), "--prompt", prompt)
    assert_refused(said, *parts)
    assert said.out == ""


def test_unknown_words_are_read_as_such_where_there_is_a_token(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    out = tmp_path / "run"
    assert_done(call(*train_text("word"), "--words", "6", "--text", tmp_path / "text.txt", "--out", out))
    said = call("generate", out, "--prompt", "the dog")
    assert said.code == 0
    assert said.out.startswith("the <unk>")
    assert "'dog' at line 1, column 5; 1 in all, read as <unk>" in said.err


def test_bad_standard_input(language_runs: Runs, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    run = language_runs("char")
    typed(b"the \xff", monkeypatch)
    assert_refused(call("generate", run), "prompt must be UTF-8 text, got 0xff at byte 4")
    typed(b"", monkeypatch)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert_refused(call("generate", run), "prompt must be given: --prompt TEXT, or on standard input")
    monkeypatch.setattr(sys, "stdin", None)  # closed, as a daemon's
    for given in ([], ["--prompt", "-"]):
        assert_refused(call("generate", run, *given), "prompt must be given: --prompt TEXT, or on standard input")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--length", "-1"], "length must be at least 0, got -1"),
        (["--temperature", "-1"], "temperature must be a number of at least 0, got -1.0"),
        (["--top-k", "0"], "top_k must be at least 1, got 0"),
        (["--top-p", "1.5"], "top_p must be a number in (0, 1], got 1.5"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--device", "gpu"], "device must be auto, cpu"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_options_that_cannot_be(options: list[str], part: str, language_runs: Runs, call: Call) -> None:
    said = call("generate", language_runs("char"), "--prompt", "the", *options)
    assert_refused(said, part)
    assert said.out == ""


def test_a_run_of_no_language_model(finished: Path, call: Call) -> None:
    assert_refused(call("generate", finished, "--prompt", "a"), "run must be of a language model", str(finished))
    (finished / "result.json").unlink()
    assert_refused(call("generate", finished, "--prompt", "a"), "run must be of a language model", "SequenceRegressor")


def test_what_is_no_run(call: Call, tmp_path: Path) -> None:
    assert_refused(call("generate", tmp_path / "nowhere", "--prompt", "a"), str(tmp_path / "nowhere"))
    assert_refused(call("generate", tmp_path, "--prompt", "a"), str(tmp_path), "holds no config.json")
