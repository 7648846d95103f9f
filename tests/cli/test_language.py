"""Language models on the command line: training on one's own text, what is refused, and going on."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import indrnn
from indrnn.tasks.rows import rows
from indrnn.tasks.text import corpus
from indrnn.tasks.text.task import LanguageTask

from .calls import FILES, LOOP, SMALL, TEXT, Call, assert_done, assert_refused, lines, read
from .calls import train_text as command


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("INDRNN_DATA", raising=False)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is pressed once, in the step after 11."""
    make, pressed = LanguageTask.batch, list[int]()

    def batch(self: LanguageTask, step: int, shard: Any) -> Any:
        if step == 11 and not pressed:
            pressed.append(step)
            signal.raise_signal(signal.SIGINT)
        return make(self, step, shard)

    monkeypatch.setattr(LanguageTask, "batch", batch)


# ---- from the first step to the report


@pytest.mark.parametrize("unit", ["char", "word", "byte"])
def test_a_text_is_learnt_measured_and_reported(unit: str, text: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = assert_done(call(*command(unit), "--text", text, "--out", out))
    metric = "perplexity" if unit == "word" else "bpc"
    tokens = {"char": len(TEXT), "word": 12 * 14, "byte": len(TEXT)}[unit] // 10 - 1
    batch = 1 if unit == "word" else 3
    assert re.search(rf"batch {batch}, tokens {tokens}, {metric} [\d.]+ with the best weights", said.out)
    assert {path.name for path in out.iterdir()} - {"tensorboard"} == FILES | {"tokeniser.json"}
    assert all(metric in line for line in lines(out))
    test = read(out, "result.json")["test"]
    assert test["tokens"] == tokens
    assert test["batch"] == batch
    net = indrnn.load(out)
    assert isinstance(net, indrnn.LanguageModel)
    assert net.tokeniser is not None
    assert net.tokeniser.decode(net.tokeniser.encode("the cat sat\n")) == "the cat sat\n"
    assert net.tokeniser.classes == net.classes

    measured = assert_done(call("evaluate", out))
    found = re.search(rf"{metric} ([\d.]+)", measured.out)
    assert found is not None
    assert float(found[1]) == pytest.approx(test[metric], rel=1e-5)
    one = assert_done(call("evaluate", out, "--test-batch", "1"))
    assert f"batch 1, tokens {tokens}" in one.out
    table = assert_done(call("report", out, "--out", tmp_path / "results")).out
    assert f"text.txt, by {unit}" in table
    assert f"| {batch} | {tokens} |" in table
    kept = read(tmp_path / "results", "run.json")
    assert kept["options"]["text"] == "text.txt"
    assert str(tmp_path) not in json.dumps({name: value for name, value in kept.items() if name != "command"})
    assert net.tokeniser.tokens == () or "".join(net.tokeniser.tokens) not in json.dumps(kept)


def test_a_run_is_resumed_from_another_folder_to_the_same_bits(
    text: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_done(call(*command("word"), "--text", "text.txt", "--out", tmp_path / "straight"))
    request.getfixturevalue("interrupt")
    assert call(*command("word"), "--text", "text.txt", "--out", tmp_path / "run").code == 130
    assert (tmp_path / "run" / "tokeniser.json").exists()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert "not finished" in assert_done(call("evaluate", tmp_path / "run")).out
    assert_done(call("train", "--resume", tmp_path / "run"))
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("straight", "run")]
    assert weights[0] == weights[1]


def test_a_text_that_was_moved_is_found_by_its_name(text: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_done(call(*command("char"), "--text", text, "--out", out))
    (tmp_path / "elsewhere").mkdir()
    text.rename(tmp_path / "elsewhere" / text.name)
    assert_refused(call("evaluate", out), str(text), "there is none")
    assert_done(call("evaluate", out, "--data-dir", tmp_path / "elsewhere"))
    assert_done(call("train", "--resume", out, "--steps", "22", "--data-dir", tmp_path / "elsewhere"))


def test_a_run_is_not_resumed_on_a_text_that_changed(text: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_done(call(*command("char"), "--text", text, "--out", out))
    text.write_text(TEXT.replace("cat", "act"))
    assert_refused(call("train", "--resume", out, "--steps", "22"), "task.train.checksum was")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_run_is_not_measured_on_a_text_that_changed(dynamic: bool, text: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_done(call(*command("char"), "--text", text, "--out", out))
    evaluate = ["evaluate", out, *(["--dynamic", "--statistics-windows", "2"] if dynamic else [])]
    assert_done(call(*evaluate))
    for content, part in ((TEXT.replace("c", "X"), "vocabulary"), (TEXT + "z\n", "vocabulary"), (TEXT * 2, "text")):
        text.write_text(content)
        assert_refused(call(*evaluate), part, f"is no longer that of {out}")


def test_a_run_does_not_start_from_one_of_another_vocabulary(text: Path, call: Call, tmp_path: Path) -> None:
    assert_done(call(*command("char"), "--text", text, "--out", tmp_path / "run"))
    start = ["--init-from", tmp_path / "run", "--out", tmp_path / "other"]
    text.write_text(TEXT.replace("c", "X"))
    assert_refused(call(*command("char"), "--text", text, *start), "the vocabulary is no longer that of")
    assert not (tmp_path / "other").exists()
    text.write_text(TEXT * 2)
    assert_done(call(*command("char"), "--text", text, *start))


def test_nor_from_one_of_another_size(text: Path, call: Call, tmp_path: Path) -> None:
    assert_done(call(*command("char"), "--text", text, "--out", tmp_path / "run"))
    text.write_text(TEXT + "XYZ\n")
    start = ["--init-from", tmp_path / "run", "--out", tmp_path / "other"]
    assert_refused(call(*command("char"), "--text", text, *start), "the vocabulary is no longer that of")


def test_a_folder_that_is_used_is_refused_before_the_text_is_read(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("something")
    files = ["--text", tmp_path / "nowhere", "--out", tmp_path]
    assert_refused(call(*command("char"), *files), f"out: {tmp_path} holds something already")


def test_a_text_is_read_once(text: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "closed"))
    said = call(*command("char"), "--text", text, "--out", tmp_path / "run")
    assert said.code == 0
    assert said.err.count("is encoded in memory") == 1


def test_files_of_one_name_are_not_mixed_up(text: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / text.name
    other.write_text(TEXT)
    files = ["--text", text, "--valid", other, "--data-dir", tmp_path]
    assert_refused(call(*command("char"), *files), "data_dir: files of the same name", str(text), str(other))


def test_three_files(text: Path, call: Call, tmp_path: Path) -> None:
    for name in ("valid", "test"):
        (tmp_path / name).write_text("the rat sat on the mat\n")
    out = tmp_path / "run"
    files = ["--text", text, "--valid", tmp_path / "valid", "--test", tmp_path / "test"]
    assert_done(call(*command("char"), *files, "--out", out))
    task = read(out, "config.json")["task"]
    assert [task[part]["tokens"] for part in ("train", "validation", "test")] == [len(TEXT), 23, 23]


def test_the_penn_treebank_is_the_users_own(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = call("train", "ptb-char-6", "--data-dir", tmp_path, "--out", tmp_path / "run")
    assert_refused(refused, "ptb.train.txt", str(tmp_path / "ptb"), "never downloaded", "--data-dir", "INDRNN_DATA")
    assert not (tmp_path / "run").exists()
    for name in corpus.PENN_FILES.values():
        (tmp_path / name).write_text(TEXT)
    small = ["train", "ptb-char-res-fast", "--data-dir", tmp_path, *SMALL, *LOOP, "--out", tmp_path / "run"]
    assert_refused(call(*small), "is not the Penn Treebank as published")
    tokens = len(TEXT)
    monkeypatch.setattr(corpus, "PENN_COUNTS", {"char": (tokens,) * 3})
    monkeypatch.setattr(corpus, "PENN_CLASSES", {"char": len(set(TEXT))})
    assert_done(call(*small))
    assert read(tmp_path / "run", "result.json")["test"]["tokens"] == tokens - 1
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert "bpc" in assert_done(call("evaluate", tmp_path / "run", "--data-dir", tmp_path)).out


# ---- what is refused


def test_without_a_text(call: Call) -> None:
    assert_refused(call("train", "text-char"), "text must be the file to train on: --text FILE")


@pytest.mark.parametrize(
    ("content", "unit", "parts"),
    [
        (b"", "char", ["text must be a file that holds a text", "is empty"]),
        (b"to be or not\n", "word", ["too short to hold out tenths", "it has 5 words"]),
        (b"a line, and nothing\n", "char", ["batch_size · length = 3 · 5", "20, got 16"]),
        (bytes(range(256)) * 20, "word", ["is not UTF-8 text", "byte 0x80 at line 2", "text-byte"]),
        (b"\x80\x81 " * 200, "char", ["is not UTF-8 text", "byte 0x80 at line 1, column 1"]),
        (b"a" * 500, "char", ["at least 2 different characters", "got 1, 'a'"]),
        (b"\n" * 500, "word", ["at least 2 different words", "got 1, '<eos>'"]),
        (b"ab" * 11, "char", ["at least batch_size · length = 3 · 5", "20, got 18"]),
    ],
    ids=["empty", "one line of words", "one line", "binary as words", "no utf-8", "one character", "one word", "short"],
)
def test_a_text_that_cannot_be_learnt(content: bytes, unit: str, parts: list[str], call: Call, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert_refused(call(*command(unit), "--text", path, "--out", tmp_path / "run"), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--text", "--valid", "--test"])
def test_a_folder_or_nothing_in_the_place_of_a_file(option: str, text: Path, call: Call, tmp_path: Path) -> None:
    given = [*command("char"), "--text", text, "--out", tmp_path / "run"]
    assert_refused(
        call(*given, option, tmp_path), f"{option[2:]} must be a file that holds a text, and {tmp_path} is a folder"
    )
    nothing = tmp_path / "nothing"
    assert_refused(call(*given, option, nothing), f"{option[2:]} must be a file, and there is none at {nothing}")
    assert not (tmp_path / "run").exists()


def test_unknown_words_and_characters_of_validation(text: Path, call: Call, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("the cat sat\non the dog and the dog\n" * 3)
    files = ["--text", text, "--valid", other, "--test", other]
    out = ["--out", tmp_path / "run"]
    assert_refused(call(*command("char"), *files, *out), "valid: ", "'g' at line 2, column 10 (6 times)", "6 in all")
    assert_refused(call(*command("word"), *files, *out), "valid: ", "'dog' at line 2, column 8 (6 times)", "6 in all")
    assert not (tmp_path / "run").exists()
    said = call(*command("word"), *files, *out, "--words", "7")  # the most frequent: there is <unk> now
    assert said.code == 0
    assert "'dog' at line 2, column 8 (6 times)" in said.err
    assert "are read as <unk>" in said.err


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--batch-size", "0"], ["batch_size must be at least 1, got 0"]),
        (["--reset", "1"], ["reset must be a number in [0, 1), got 1"]),
        (["--words", "2"], ["words must be at least 3, got 2"]),
        (["--embedding", "0"], ["embedding must be at least 1, got 0"]),
        (["--model.batch-first"], ["model.batch_first must be False"]),
        (["--test-batch", "0"], ["test_batch must be at least 1, got 0"]),
    ],
    ids=lambda value: value[0] if value[0].startswith("--") else "",
)
def test_options_that_cannot_be(options: list[str], parts: list[str], text: Path, call: Call) -> None:
    assert_refused(call(*command("char"), "--text", text, *options), *parts)


def test_a_test_batch_is_for_language_models(finished: Path, call: Call) -> None:
    assert_refused(call("evaluate", finished, "--test-batch", "1"), "test_batch is for language models", str(finished))


# ---- recipes


def test_recipes_of_the_penn_treebank_are_listed(call: Call) -> None:
    said = assert_done(call("recipes", "ptb")).out
    names = re.findall(r"^(ptb-\S+)", said, re.MULTILINE)
    assert sorted(names) == sorted(name for name in rows() if name.startswith("ptb-"))
    assert {"ptb-char-6", "ptb-char-6-t100", "ptb-char-res21", "ptb-char-res21-t100"} <= set(names)
    assert {"ptb-char-dense", "ptb-char-dense-t100", "ptb-word-res12", "ptb-word-dense"} <= set(names)


def test_the_vocabulary_is_not_in_the_metrics_or_the_configuration(text: Path, call: Call, tmp_path: Path) -> None:
    """So that nothing of a licensed text is in what is reported."""
    out = tmp_path / "run"
    assert_done(call(*command("word"), "--text", text, "--out", out))
    for name in ("config.json", "metrics.jsonl", "result.json", "model.json"):
        assert '"sat"' not in (out / name).read_text()
    assert '"sat"' in (out / "tokeniser.json").read_text()
