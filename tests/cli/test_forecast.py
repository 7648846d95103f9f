"""`indrnn forecast`: files in a folder, going on from it, errors before any training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from indrnn.cli.main import main

from .calls import Call, assert_done, assert_refused, contents

pytest.importorskip("neuralforecast", reason="forecasts need the extra: pip install 'indrnn[forecast]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about itself
COLUMNS = ["--time", "month", "--target", "sales", "--id", "shop"]
SMALL = ["--horizon", "4", "--windows", "2", "--steps", "3", "--season", "6", "--model.hidden-size", "5"]


def write(path: Path, months: int = 40) -> Path:
    rows = [
        f"{shop},{2010 + t // 12}-{t % 12 + 1:02}-01,{100 * (i + 1) + t + 7 * (t % 6)}"
        for i, shop in enumerate(("01", "$x$"))
        for t in range(months)
    ]
    path.write_text("\n".join(["shop,month,sales", *rows]) + "\n")
    return path


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of forecasts, not to be changed."""
    folder = tmp_path_factory.mktemp("forecast")
    with pytest.raises(SystemExit) as end:
        main(["forecast", str(write(folder / "sales.csv")), *COLUMNS, *SMALL, "--out", str(folder / "out")])
    assert end.value.code == 0
    return folder / "out"


def rows(folder: Path) -> list[list[str]]:
    return [line.split(",") for line in (folder / "forecasts.csv").read_text().splitlines()]


def test_it_compares_and_forecasts(call: Call, tmp_path: Path) -> None:
    said = assert_done(call("forecast", write(tmp_path / "sales.csv"), *COLUMNS, *SMALL))
    out = Path("runs/forecast-sales")
    assert {path.name for path in out.iterdir()} == {
        *("data.csv", "forecast.json", "forecasts.csv", "forecasts.png", "model"),
    }
    assert [path.name for path in Path().iterdir()] == ["runs"]  # no lightning_logs
    assert [path.name for path in Path("runs").iterdir()] == ["forecast-sales"]
    first, head, *table = said.out.splitlines()
    assert first == (
        "2 series of 40 steps, 0 missing, every MS, season 6, until 2013-04-01 00:00:00; the network reads 12 steps"
    )
    assert head.split("  ")[-2:] == [" in 80 %", " in 95 %"]
    names = [line.split()[0] for line in table[:5]]
    assert names == ["IndRNN", "IndRNN-recurrent", "LSTM", "Naive", "SeasonalNaive"]
    assert "has the lowest error; forecasts of IndRNN: runs/forecast-sales/forecasts.csv" in table[5]
    scores = json.loads((out / "forecast.json").read_text())["scores"]
    assert [score["model"] for score in scores] == names
    assert scores[-1]["MAE"] == 6  # the trend
    columns, *lines = rows(out)
    assert columns == ["shop", "month", "sales", *(f"sales-{end}" for end in ("lo-95", "lo-80", "hi-80", "hi-95"))]
    assert [line[:2] for line in lines] == [[shop, f"2013-{m:02}-01"] for shop in ("$x$", "01") for m in (5, 6, 7, 8)]
    for line in lines:
        forecast, *ends = map(float, line[2:])
        assert [*ends[:2], forecast, *ends[2:]] == sorted([*ends, forecast])


def test_a_step_at_a_time(call: Call, tmp_path: Path) -> None:
    command = ("forecast", write(tmp_path / "sales.csv"), *COLUMNS, *SMALL, "--recurrent", "--level", "90")
    said = assert_done(call(*command, "--out", "out"))
    assert [line.split()[0] for line in said.out.splitlines()[2:5]] == ["IndRNN-recurrent", "IndRNN", "LSTM-recurrent"]
    assert rows(Path("out"))[0][3:] == ["sales-lo-90", "sales-hi-90"]
    assert_done(call("forecast", "out"))
    assert rows(Path("out/again")) == rows(Path("out"))


def test_it_goes_on_from_a_folder(call: Call, earlier: Path, tmp_path: Path) -> None:
    before = contents(earlier)
    assert_done(call("forecast", earlier, "--out", tmp_path / "same"))
    assert rows(tmp_path / "same") == rows(earlier)
    newer = write(tmp_path / "newer.csv", 45)
    said = assert_done(call("forecast", earlier, "--data", newer, "--out", tmp_path / "next"))
    assert "2 series of 45 steps" in said.out
    assert [line[1] for line in rows(tmp_path / "next")[1:5]] == [f"2013-{m}-01" for m in ("10", "11", "12")] + [
        "2014-01-01"
    ]
    assert contents(earlier) == before


def test_forecasts_are_replaced_only_when_told(call: Call, earlier: Path, tmp_path: Path) -> None:
    out = tmp_path / "next"
    assert_done(call("forecast", earlier, "--out", out))
    before = contents(out)
    assert_refused(call("forecast", earlier, "--out", out), "out must be a new folder", "--overwrite replaces it")
    assert contents(out) == before
    data = ["--data", write(tmp_path / "newer.csv", 45)]
    assert_done(call("forecast", earlier, "--out", out, *data, "--overwrite"))
    assert contents(out) != before
    (tmp_path / "mine").mkdir()
    refused = call("forecast", earlier, "--out", tmp_path / "mine", "--overwrite")
    assert_refused(refused, "out must be a new folder", "holds no forecasts.csv")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--time", "day"], "time must be a column of sales.csv (shop, month, sales), got 'day'"),
        (["--windows", "8"], "horizon, windows and input_steps must fit into each series, got 8 windows of 4 steps"),
        (["--input-steps", "39"], "and 40 in '$x$'"),
        (["--horizon", "0"], "horizon must be at least 1, got 0"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--level", "80", "100"], "level must be whole numbers from 1 to 99, got (80, 100)"),
        (["--freq", "often"], "freq must be the distance of the times (D, h, W-SUN, MS, ...), got often"),
        (["--model.layers", "0"], "layers must be at least 1, got 0"),
        (["--recurrent", "--model.bidirectional"], "network.bidirectional must be False with recurrent"),
    ],
)
def test_wrong_options_are_refused_and_nothing_written(call: Call, options: list[str], said: str) -> None:
    write(Path("sales.csv"))
    assert_refused(call("forecast", "sales.csv", *COLUMNS, *SMALL, *options), said)
    assert not [path for path in Path().rglob("*") if path.name not in ("sales.csv", "runs")]


def test_what_is_no_folder_of_forecasts_is_refused(call: Call) -> None:
    Path("other").mkdir()
    assert_refused(call("forecast", "other"), "folder must be one that `indrnn forecast FILE` has written")
    assert_refused(call("forecast", "none.csv", *COLUMNS, *SMALL), "data must be a CSV file or a folder of forecasts")


def test_nothing_is_left_of_a_training_that_fails(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from indrnn.forecast import models

    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(models, "fit", fail)
    write(Path("sales.csv"))
    assert_refused(call("forecast", "sales.csv", *COLUMNS, *SMALL), "the disk is full", code=1)
    assert list(Path("runs").iterdir()) == []


def test_without_the_extra_the_message_names_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("indrnn.forecast")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert_refused(call("forecast", write(Path("sales.csv")), *COLUMNS, *SMALL), 'pip install "indrnn[forecast]"')


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom indrnn.cli import main\n"
        "try:\n    main(['forecast', '--help'])\n"
        "except SystemExit:\n    assert not {'torch', 'pandas'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--horizon" in done.stdout
