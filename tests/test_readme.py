"""The code in README and docs runs as it stands; commands, names and files that they mention are there."""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro

import indrnn
from indrnn.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted(ROOT.glob("docs/*.md"))]


def run(page: str) -> dict[str, Any]:
    """Every block of Python on the page, one after the other."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)
    return names


def test_readme() -> None:
    """Six classes of waves in noise, told apart by frequency, are learnt by the lines as they stand."""
    torch.manual_seed(0)
    names = run("README.md")
    y = torch.arange(300) % 6
    t = torch.arange(100).view(-1, 1, 1)
    x = torch.sin(0.07 * (1 + y).view(-1, 1) * t + 6.3 * torch.rand(300, 1)) + 0.5 * torch.randn(100, 300, 9)
    order = torch.randperm(300)
    held_out, rest = order[:60], order[60:]
    for step in range(150):
        items = rest[(32 * step + torch.arange(32)) % len(rest)]
        names["train_step"](x[:, items], y[items])
    output, h_n = names["rnn"](x[:, held_out])
    assert h_n.shape == (2, 60, 64)
    assert (names["classes"](output[-1]).argmax(1) == y[held_out]).float().mean() > 0.8
    assert all(u.abs().max() <= 1 for name, u in names["model"].named_parameters() if "weight_hh" in name)


def test_networks() -> None:
    names = run("docs/networks.md")
    assert sum(parameter.numel() for parameter in names["model"].parameters()) == 256_514
    depths = [len(names[name].recurrent_layers) for name in ("plain", "residual", "dense")]
    assert depths == [6, 11, 40]


@pytest.mark.parametrize(
    ("title", "network"),
    [
        ("PlainIndRNN(3, 8, 1)", indrnn.PlainIndRNN(3, 8, 1)),
        ("ResidualIndRNN(3, 8, 1, last_transition=4)", indrnn.ResidualIndRNN(3, 8, 1, last_transition=4)),
        ("DenseIndRNN(3, 4, (1,))", indrnn.DenseIndRNN(3, 4, (1,))),
    ],
)
def test_keys_of_the_networks(title: str, network: torch.nn.Module) -> None:
    text = (ROOT / "docs/networks.md").read_text(encoding="utf-8")
    found = re.search(rf"`{re.escape(title)}`:\n\n```text\n(.*?)\n```", text, re.DOTALL)
    assert found is not None
    assert found[1].split("\n") == list(network.state_dict())


def test_language() -> None:
    names = run("docs/language.md")
    assert names["logits"].shape == (50, 8, 1000)
    assert names["text"].shape == (20,)
    assert names["result"].tokens == 199


def test_tools() -> None:
    names = run("docs/tools.md")
    assert names["products"][0].shape == (20, 8, 32)
    grown = [name for name, p in names["adapted"].named_parameters() if p.grad is not None]
    assert grown
    assert all("weight.up" in name or "weight.down" in name for name in grown)
    assert all(
        (unit.weight.weight == 0).sum() >= unit.weight.weight.numel() // 2 for unit in names["pruned"].recurrent_layers
    )
    assert all(p.grad is not None for p in names["saving"].parameters())
    assert all(p.grad is not None for p in names["sharded"].parameters())
    assert all(b == 2 for name, b in names["averaged"].named_buffers() if name.endswith("num_batches_tracked"))
    assert "DynamicQuantizedLinear" in repr(names["quantised"])
    assert all((p == 0).all() for name, p in names["large"].named_parameters() if name.endswith("bias"))


def test_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # the page's runs go into ./runs
    monkeypatch.setattr("sys.stdout", io.StringIO())
    names = run("docs/training.md")
    assert (tmp_path / "runs/sign/weights.safetensors").exists()
    assert names["result"].folder == Path("runs/sum")
    assert names["result"].test["mse"] < 0.5  # the variance of the answer is 30/12


def test_tables_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.pages import main

    monkeypatch.chdir(ROOT)
    code = main([])
    said = capsys.readouterr().out
    assert code == 0, said
    assert int(said.split()[0]) >= 11


def test_a_table_that_differs_is_found(tmp_path: Path) -> None:
    from benchmarks.pages import check

    source = tmp_path / "source.md"
    source.write_text("| run | T = 4 | command |\n|---|---|---|\n| a | 1.5 | `x` |\n| b | 2.5 | `y` |\n")
    page = tmp_path / "page.md"
    text = f"<!-- from {source} -->\n| T = 4 | ours | command |\n|---|---|---|\n| 2.5 | {{}} after | `{{}}` |\n"
    for ours, command, wrong in (("2.5", "y", 0), ("2.6", "y", 1), ("2.5", "z", 1), ("1.5", "x", 1)):
        page.write_text(text.format(ours, command))
        found, tables = check([page])
        assert (len(found), tables) == (wrong, 1), found


def commands(text: str) -> list[list[str]]:
    """The words of each command on a page: `indrnn ...` and `python -m benchmarks...`."""
    text = re.sub(r"(torchrun .*|python) -m (?=indrnn|benchmarks)", "", text)
    command = r"(?:indrnn [a-z]|benchmarks\.)[^`\n]*"
    lines = re.findall(rf"`({command})`", text) + re.findall(rf"^ *({command})", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_parsed(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class ParsedError(Exception):
        """Raised in place of carrying a command out."""

    def parse(*arguments: Any, **options: Any) -> None:
        parser(*arguments, **options)
        raise ParsedError

    parser = tyro.cli
    monkeypatch.setattr(tyro, "cli", parse)
    monkeypatch.chdir(tmp_path)
    Path("runs/forecast-sales").mkdir(parents=True)
    text = page.read_text(encoding="utf-8").replace("train RECIPE", "train adding-100")
    for program, *words in commands(text):
        if program in ("benchmarks.forecast", "benchmarks.pages") or "parity" in words:
            continue  # needs an extra; has no options; a recipe that its page adds
        if program.startswith("benchmarks."):
            module = importlib.import_module(program)
            main = getattr(module, "BENCHMARK", None) or module.main
        elif len(words) == 1 or "--help" in words:
            assert words[0] in COMMANDS
            continue
        else:
            if words[0] == "train" and words[1] in ("--resume", "--config"):
                words[1:3] = ["adding-100"]
            main = getattr(importlib.import_module(f"indrnn.cli.{words[0]}"), words.pop(0))
        with pytest.raises(ParsedError):
            main(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"indrnn\.(recipes|forecast)\b[\w.]*", "", text)  # a group of entry points; needs an extra
    imports = re.findall(r"^ *from (indrnn[\w.]*) import ([\w, ]+)", text, re.MULTILINE)
    names = [f"{module}.{name.strip()}" for module, several in imports for name in several.split(",")]
    for name in names + re.findall(r"\bindrnn(?:\.[a-zA-Z_]\w*)+", text):
        pkgutil.resolve_name(name)
    rooms = "|".join(path.name for path in (ROOT / "src/indrnn").iterdir() if path.is_dir())
    for name in re.findall(rf"(?<!--out )(?<![\w./-])(?:src|tests|docs|results|benchmarks|{rooms})/[\w./-]*\w", text):
        assert any((root / name).exists() for root in (ROOT, ROOT / "src/indrnn")), name
    for name, section in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = page.parent / name if name else page
        assert target.exists(), name
        if section:
            headings = re.findall(r"^#+ (.*)", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert section in anchors
