"""docs/task.md: its file in a package of its own, installed by an entry point, is known to every command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "task.md"
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that Python finds the page's package in, as pip would leave it."""
    folder = tmp_path_factory.mktemp("site")
    blocks = dict(re.findall(r"```(python|toml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    (folder / "parity.py").write_text(blocks["python"], encoding="utf-8")
    group, point = re.findall(r'\[project\.entry-points\."(.*?)"\]\n(.*)\n', blocks["toml"])[0]
    info = folder / "parity-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parity\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point.replace(chr(34), '')}\n")
    return folder


def indrnn(package: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "indrnn", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_it_is_listed_trained_resumed_reported_and_explored(package: Path, tmp_path: Path) -> None:
    listed = indrnn(package, "recipes", "parity")
    assert "parity-long" in listed.stdout
    assert "Tell whether the number of ones" in listed.stdout
    out = tmp_path / "runs"
    options = ["--length", 3, "--steps", 60, "--lr", 0.02, "--evaluate-every", 20, "--threads", 1]
    trained = indrnn(package, "train", "parity", *options, "--seeds", 0, 1, "--out", out)
    assert trained.returncode == 0, trained.stderr
    config = json.loads((out / "seed-1" / "config.json").read_text())
    assert config["recipe"]["name"] == "parity"
    assert (config["recipe"]["type"], config["recipe"]["length"], config["seed"]) == ("ParityRecipe", 3, 1)
    measured = indrnn(package, "evaluate", out / "seed-0")
    assert re.search(r"accuracy \d", measured.stdout), measured.stderr
    rows = indrnn(package, "report", out / "seed-0", out / "seed-1", "--out", tmp_path / "results")
    assert "(n = 2)" in rows.stdout, rows.stderr
    again = indrnn(package, "train", "--resume", out / "seed-0", "--steps", 80)
    assert again.returncode == 0, again.stderr
    page = indrnn(package, "report", out / "seed-1", "--html", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    text = (tmp_path / "page.html").read_text()
    assert "200 test sequences" in text
    assert "guessing gives 50 %" in text
    explored = indrnn(package, "explore", out / "seed-1", "--out", tmp_path / "explore.html")
    assert explored.returncode == 0, explored.stderr
    assert "even" in (tmp_path / "explore.html").read_text()


def test_its_options_are_checked_and_without_its_package_the_run_is_refused_by_name(
    package: Path, tmp_path: Path
) -> None:
    refused = indrnn(package, "train", "parity", "--length", 0, "--out", tmp_path / "run")
    assert refused.returncode == 2
    assert "length must be at least 1, got 0" in refused.stderr
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    recipe = {"name": "parity", "type": "ParityRecipe"}
    (tmp_path / "run" / "config.json").write_text(json.dumps({"recipe": recipe}))
    unknown = indrnn(tmp_path, "evaluate", tmp_path / "run")
    assert unknown.returncode == 2
    assert "no such kind of recipe is installed: 'ParityRecipe'" in unknown.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import nothing_there", "cannot be loaded, ModuleNotFoundError: No module named 'nothing_there'"),
        ("ROWS = 3", "cannot be loaded, TypeError: 'int' object is not iterable"),
        ("from indrnn.tasks.adding import ROWS", "adding-100, adding-100-fast, "),
    ],
)
def test_a_package_whose_recipes_cannot_be_used_is_named_in_a_line(
    content: str, message: str, package: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(package, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__")))
    (broken / "parity.py").write_text(content)
    refused = indrnn(broken, "recipes")
    assert refused.returncode == 2
    assert f"another package, the entry point parity = parity:ROWS: {message}" in refused.stderr
    assert refused.stderr.count("\n") == 1
