"""`indrnn.tasks.series.reading.read`: .npz, .ts and tables that the tests write, and what is wrong with others."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indrnn.tasks.series.reading import MissingPackageError, Reading, read, read_with
from indrnn.tasks.series.reading.values import parsed, where

pandas = pytest.importorskip("pandas", reason="needs pandas: pip install 'indrnn[data]'")


def series(*lengths: int, channels: int = 2) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=(channels, n)).astype(np.float32) for n in lengths]


def assert_same(found: list[np.ndarray[Any, Any]], wanted: list[np.ndarray[Any, Any]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == np.float32


def refused(path: Path, *parts: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(path.name)) as error:
        read(path, **options)
    for part in parts:
        assert part in str(error.value)


# ---- .npz


def test_npz_of_one_length(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x = np.stack(series(7, 7, 7))
    np.savez(path, x=x, y=["b", "a", "b"])
    found = read(path)
    assert_same(found.x, list(x))
    assert found.y is not None
    assert found.y.tolist() == ["b", "a", "b"]
    assert found.channels == ("0", "1")
    assert (found.names, found.groups, found.test) == (None, None, None)


def test_npz_of_two_dimensions_and_time_first(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x = np.stack(series(7, 7, 7))
    np.savez(path, x=x[:, 0], y=[0, 1, 0])
    assert_same(read(path).x, list(x[:, :1]))
    np.savez(path, x=x.transpose(0, 2, 1), y=[0, 1, 0])
    assert_same(read(path, time_first=True).x, list(x))


@pytest.mark.parametrize("layout", ["padded", "concatenated"])
def test_npz_of_several_lengths(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    wanted = series(3, 7, 1)
    if layout == "padded":
        x = np.zeros((3, 2, 9), np.float32)
        for row, one in zip(x, wanted, strict=True):
            row[:, : one.shape[1]] = one
    else:
        x = np.concatenate([one.T for one in wanted])
    np.savez(path, frames=x, lengths=[3, 7, 1], action=[1, 2, 2], who=["a", "b", "a"], index=[0, 5, 6])
    found = read(path, x="frames", target="action", group="who", test_where="index>=5")
    assert_same(found.x, wanted)
    assert found.y is not None
    assert found.groups is not None
    assert found.test is not None
    assert (found.y.tolist(), found.groups.tolist(), found.test.tolist()) == (
        *([1, 2, 2], ["a", "b", "a"], [False, True, True]),
    )


def test_npz_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x = np.stack(series(5, 5, 5))
    np.savez(path, x=x, y=[0, 1])
    refused(path, "y must have one entry for each of the 3 series", "(2,)")
    np.savez(path, frames=x, y=[0, 1, 0])
    refused(path, "x: ", "frames (3, 2, 5)")
    refused(path, "'frame'", "did you mean frames?", x="frame")
    refused(path, "target", "'label'", x="frames", target="label")
    np.savez(path, x=x[0, 0], y=[0])
    refused(path, "(n, channels, time)", "(5,)")
    np.savez(path, x=x[None], y=[0])
    refused(path, "(1, 3, 2, 5)")
    np.savez(path, x=x, y=[0, 1, 0], lengths=[5, 6, 1])
    refused(path, "5 steps", "up to 6")
    np.savez(path, x=x, y=[0, 1, 0], lengths=[2, 2])
    refused(path, "2 lengths", "sum, 4", "(3, 2, 5)")
    np.savez(path, x=np.array([None, 1]), y=[0, 1])
    refused(path, "x is an array of Python objects")
    np.savez(path, x=x.astype(str), y=[0, 1, 0])
    refused(path, "x must hold numbers")
    np.savez(path, x=x, y=[0, 1, 0], s=["a", "b", "c"])
    refused(path, "none of the 3 series", test_where="s==d")
    refused(path, "all of the 3 series", test_where="s!=d")
    for content in (b"PK\3\4 and no more", b"some text"):
        path.write_bytes(content)
        refused(path, "cannot be read as .npz")
    with path.open("wb") as file:
        np.save(file, x)
    refused(path, "cannot be read as .npz", "one array")


def test_npz_with_bytes_as_text(tmp_path: Path) -> None:
    """Only fields that are used must be UTF-8."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones((2, 5)), y=[b"a", "b\u00e9".encode()], who=[b"ann", b"bob"], other=[b"\xff", b"a"])
    found = read(path, group="who", test_where="who==bob")
    assert found.y is not None
    assert found.test is not None
    assert (found.y.tolist(), found.test.tolist()) == (["a", "b\u00e9"], [False, True])
    refused(path, "other must hold text in UTF-8", "xff", target="other")
    assert len(read(path, target="other", target_needed=False)) == 2
    refused(path, "other must hold text in UTF-8", "xff", group="other")


def test_values_that_no_series_may_have_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x = np.stack(series(5, 5, 5)).astype(np.float64)
    for value, word in ((np.inf, "infinite"), (1e300, "too large for float32, 1e+300")):
        x[1, 1, 3] = value
        np.savez(path, x=x, y=[0, 1, 0])
        refused(path, "series 1, channel 1, step 3", word)
    x[1] = np.nan
    np.savez(path, x=x, y=[0, 1, 0])
    refused(path, "series 1 has no value at all")


@pytest.mark.parametrize("name", ["a.npz", "a.ts", "a.csv", "a.parquet"])
def test_an_empty_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.touch()
    refused(path, "is empty", target="label" if name in ("a.csv", "a.parquet") else None)


def test_files_of_other_kinds_and_none(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_text("x")
    refused(path, ".npz, .ts, .csv", "got .mat")
    with pytest.raises(FileNotFoundError, match="is not there"):
        read(tmp_path / "b.csv")


def test_an_option_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones((2, 3)), y=[0, 1])
    refused(path, "rate is not for a.npz", rate=8000)


# ---- .ts

HEADER = "# made by hand\n@problemName A\n@timeStamps false\n@missing true\n@univariate false\n@dimensions 2\n"
HEADER += "@equalLength false\n@classLabel true up down\n@data\n"


def test_ts_with_channels_lengths_and_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "a.ts"
    path.write_text(HEADER + "1,2,?:4,5,6:up\n\n1.5,-2e3:NaN,7:down\n")
    found = read(path)
    wanted = [[[1, 2, np.nan], [4, 5, 6]], [[1.5, -2000], [np.nan, 7]]]
    assert_same(found.x, [np.array(each, np.float32) for each in wanted])
    assert found.y is not None
    assert found.y.tolist() == ["up", "down"]


def test_ts_with_numbers_as_targets(tmp_path: Path) -> None:
    path = tmp_path / "a.ts"
    path.write_text("@univariate true\n@targetlabel true\n@data\n1,2,3:0.5\n3,4,5:-1\n")
    found = read(path)
    assert found.y is not None
    np.testing.assert_array_equal(found.y, [0.5, -1])
    assert found.x[1].tolist() == [[3, 4, 5]]


def test_ts_of_train_and_test(tmp_path: Path) -> None:
    """The second is found by its name; labels are of one type over both."""
    for name, label in (("TRAIN", "1"), ("TEST", "a")):
        (tmp_path / f"Set_{name}.ts").write_text(f"@classLabel true 1 a\n@data\n1,2:1\n3,4:{label}\n")
    found = read(tmp_path / "Set_TRAIN.ts")
    assert found.y is not None
    assert found.test is not None
    assert found.y.tolist() == ["1", "1", "1", "a"]
    assert found.test.tolist() == [False, False, True, True]
    named = read(tmp_path / "Set_TEST.ts", test=tmp_path / "Set_TRAIN.ts")
    assert named.y is not None
    assert named.y.tolist() == ["1", "a", "1", "1"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2\n", ["line 1 must start with @"]),
        ("@classLabel true 1\n", ["@data"]),
        ("@classLabel true 1\n@data\n", ["at least one series"]),
        ("@classLabel true 1 2\n@data\n1,2:1\n1,2:3\n", ["line 4", "'3'", "1 2"]),
        ("@classLabel true 1\n@data\n1,2:1\n1,x:1\n", ["line 4, channel 0: value 1", "'x'"]),
        ("@classLabel true 1\n@data\n1,2:1\n1,2:3,4:1\n", ["line 4 must have 1 channels"]),
        ("@dimensions 3\n@classLabel true 1\n@data\n1,2:1,4:1\n", ["line 4 must have 3 channels", "got 2"]),
        ("@classLabel true 1\n@data\n1,2\n", ["line 3", "a colon and a label"]),
        ("@classLabel false\n@data\n1,2\n", ["no labels"]),
        ("@targetLabel true\n@data\n1,2:0.5\n1,2:?\n", ["line 4 has no target"]),
        ("@targetLabel true\n@data\n1,2:0.5\n1,2:NaN\n", ["line 4 has no target"]),
        ("@targetLabel true\n@data\n1,2:0.5\n1,2:1_0\n", ["line 4 must have a number as its target", "'1_0'"]),
        ("@classLabel true 1 2\n@data\n1,2:1\n1,2:?\n", ["line 4 has no target"]),
        ("@classLabel true\n@data\n1,2:1\n1,2:\n", ["line 4 has no target"]),
        ("@classLabel true 1\n@data\n1,1_0:1\n", ["line 3, channel 0: value 1", "'1_0'"]),
        ("@classLabel true 1\n@\n@data\n1,2:1\n", ["line 2 must have a name after @"]),
        ("@classLabel true 'a' 'b'\n@data\n1,2:a\n", ["line 3", "without quotes or commas"]),
        ("@classLabel true a,b\n@data\n1,2:a\n", ["line 3", "without quotes or commas"]),
        ("@timeStamps true\n@classLabel true 1\n@data\n(0,1),(1,2):1\n", ["not supported"]),
    ],
)
def test_ts_that_is_wrong(text: str, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.ts"
    path.write_text(text)
    refused(path, *parts)


def test_ts_with_question_marks_as_labels(tmp_path: Path) -> None:
    """Where it is declared it is a class; where no label is needed there is none."""
    path = tmp_path / "a.ts"
    path.write_text("@classLabel true a ?\n@data\n1,2:a\n1,2:?\n")
    found = read(path)
    assert found.y is not None
    assert found.y.tolist() == ["a", "?"]
    path.write_text("@classLabel true a b\n@data\n1,2:a\n1,2:?\n")
    found = read(path, target_needed=False)
    assert (found.y, len(found)) == (None, 2)


# ---- tables

LONG = """\
run,t,ax,ay,who,label
b,2,5,50,ann,walk
a,1,1,10,bob,sit
b,1,4,40,ann,walk

a,3,3,?,bob,sit
a,2,2,20,bob,sit
"""
LONG_OPTIONS: dict[str, Any] = {"id": "run", "time": "t", "target": "label", "group": "who"}


def write(path: Path, text: str) -> Path:
    """A CSV, or a Parquet file of the same."""
    if path.suffix == ".parquet":
        import io

        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'indrnn[data]'")
        pandas.read_csv(io.StringIO(text), na_values=["?"]).to_parquet(path)
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_long_form(name: str, tmp_path: Path) -> None:
    """Series in the order in which they first come, rows in that of time."""
    found = read(write(tmp_path / name, LONG), **LONG_OPTIONS, test_where="who==ann")
    wanted = [[[4, 5], [40, 50]], [[1, 2, 3], [10, 20, np.nan]]]
    assert_same(found.x, [np.array(each, np.float32) for each in wanted])
    assert found.names == ("b", "a")
    assert found.channels == ("ax", "ay")
    assert found.y is not None
    assert found.groups is not None
    assert found.test is not None
    assert (found.y.tolist(), found.groups.tolist()) == (["walk", "sit"], ["ann", "bob"])
    assert found.test.tolist() == [True, False]


def test_long_form_with_chosen_features_dates_and_differences(tmp_path: Path) -> None:
    times = {"1": "2024-03-01 00:00:10", "2": "2024-03-01 00:00:12", "3": "2024-03-02"}
    text = re.sub(r"^([ab]),(\d)", lambda match: f"{match[1]},{times[match[2]]}", LONG, flags=re.MULTILINE)
    path = write(tmp_path / "a.csv", text)
    found = read(path, id="run", time="t", target="label", features=("ay",), time_differences=True)
    assert found.channels == ("ay", "dt")
    np.testing.assert_array_equal(found.x[1], np.array([[10, 20, np.nan], [0, 2, 86388]], np.float32))


def test_long_form_with_a_target_at_every_step(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,t,x,y\n1,0,5,0\n1,1,6,1\n2,0,7,1\n")
    found = read(path, id="id", time="t", target="y", per_step=True)
    assert found.y is not None
    assert [each.tolist() for each in found.y] == [[0, 1], [1]]
    refused(path, "line 3: y (target) must be the same", "got 0 and 1", "--per-step", id="id", time="t", target="y")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_wide_form(name: str, tmp_path: Path) -> None:
    """Empty cells at the end make a shorter series; others are missing values."""
    path = write(tmp_path / name, "label,name,s0,s1,s2\n1,a,1,2,3\n2,b,,5,\n")
    found = read(path, target="label", id="name")
    assert_same(found.x, [np.array([[1, 2, 3]], np.float32), np.array([[np.nan, 5]], np.float32)])
    assert found.y is not None
    assert (found.y.tolist(), found.names) == ([1, 2], ("a", "b"))


def test_wide_form_of_several_channels(tmp_path: Path) -> None:
    names = [f"a_{i}" for i in (0, 10, 9)] + [f"b_{i}" for i in (0, 9, 10)]
    path = write(tmp_path / "a.csv", ",".join(["y", *names]) + "\n0,1,3,2,4,5,6\n1,7,9,8,1,1,1\n")
    found = read(path, target="y", features=("b", "a"))
    assert found.channels == ("b", "a")
    assert found.x[0].tolist() == [[4, 5, 6], [1, 2, 3]]


def test_a_table_without_a_header(tmp_path: Path) -> None:
    """As the .tsv files of the UCR archive."""
    (tmp_path / "a.tsv").write_text("1\t0.5\t0.25\n2\t1.5\t2\n")
    found = read(tmp_path / "a.tsv", target="0")
    assert found.y is not None
    assert (found.y.tolist(), [one.tolist() for one in found.x]) == ([1, 2], [[[0.5, 0.25]], [[1.5, 2]]])


def test_a_first_row_with_a_missing_value_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,,4,0\n2,3,4,1\n5,6,7,0\n")
    found = read(path, target="3")
    assert_same(found.x, [np.array([row], np.float32) for row in ([1, np.nan, 4], [2, 3, 4], [5, 6, 7])])


def test_missing_values_of_a_single_column_keep_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("v\n1\n2\nNA\n4\n\n6\n\n\n")
    found = read(path, target_needed=False, layout="long")
    assert_same(found.x, [np.array([[1, 2, np.nan, 4, np.nan, 6]], np.float32)])
    path.write_text("v,w\n1,2\n\nNA,\n3,4\n\n")
    found = read(path, target_needed=False, layout="long")
    assert_same(found.x, [np.array([[1, np.nan, 3], [2, np.nan, 4]], np.float32)])


def test_lines_of_tabs_alone_are_blank(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("v\tw\n1\t2\n\t\nNA\t\n\n3\t4\n\t\n")
    found = read(path, target_needed=False, layout="long")
    assert_same(found.x, [np.array([[1, np.nan, 3], [2, np.nan, 4]], np.float32)])
    path.write_text("v\tw\n1\t2\n\t\n3\tx\n")
    refused(path, "line 4: w must be a number", target_needed=False, layout="long")


def test_rows_that_are_longer_than_the_first_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n2,3,4,9,9\n5,6,7,8\n")
    refused(path, "cannot be read as a table", target="c")


def test_columns_that_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,note,b,c\n1,x,2,0\n3,y,4,1\n")
    assert_same(
        read(path, target="c", ignore=("note",)).x, [np.array([[1, 2]], np.float32), np.array([[3, 4]], np.float32)]
    )


def test_a_column_that_is_ignored_must_be_there(tmp_path: Path) -> None:
    """But not in the files that are read with the options of another: those for test or prediction."""
    path, other = write(tmp_path / "a.csv", "a,note,c\n1,x,0\n3,y,1\n"), write(tmp_path / "b.csv", "a,c\n2,0\n4,1\n")
    refused(path, "ignore: ", "'nota'", "did you mean note?", target="c", ignore=("nota",))
    refused(path, "ignore: ", "'nota'", target_needed=False, ignore=("nota",))
    assert len(read(path, test=other, target="c", ignore=("note",))) == 4
    _, reading, _ = read_with(path, Reading(target="c", ignore=("note",)))
    assert len(read_with(other, reading, target_needed=False, alone=True)[0]) == 2
    of_npz = Reading(target="c", ignore=("who",))
    assert len(read_with(other, of_npz, target_needed=False, alone=True)[0]) == 2
    with pytest.raises(ValueError, match=r"ignore: .*'nota'"):
        read_with(path, Reading(layout="long", ignore=("nota",)), target_needed=False, alone=True)


@pytest.mark.parametrize("again", [False, True], ids=["written once", "read and written again"])
def test_the_index_that_pandas_writes_is_no_feature(again: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": ["x", "y"]})
    frame.to_csv(path)
    unnamed: tuple[str, ...] = ("Unnamed: 0",)
    if again:
        pandas.read_csv(path).to_csv(path)
        unnamed = ("Unnamed: 0.1", "Unnamed: 0")
    refused(path, "without a name", "index=False", "--ignore " + " ".join(map(repr, unnamed)), target="label")
    wanted = [np.array([row], np.float32) for row in ([1, 3], [2, 4])]
    for options in ({"ignore": unnamed}, {"features": ("a", "b")}):
        assert_same(read(path, target="label", **options).x, wanted)
    named = read(path, target="label", id=unnamed[0], ignore=unnamed[1:])
    assert_same(named.x, wanted)
    assert named.names == ("0", "1")


@pytest.mark.parametrize("end", [",", ""], ids=["in every row", "in the header"])
def test_a_comma_at_the_end_is_no_column(end: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", f"a,b,label,\n1,2,x{end}\n3,4,y{end}\n")
    assert_same(read(path, target="label").x, [np.array([row], np.float32) for row in ([1, 2], [3, 4])])


def test_words_with_underscores_are_no_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "label,who,a\n1_1,1_1,5\n1_2,11,6\n11,2,7\n")
    found = read(path, target="label", group="who", test_where="who==11")
    assert found.y is not None
    assert found.groups is not None
    assert found.test is not None
    assert (found.y.tolist(), found.groups.tolist()) == (["1_1", "1_2", "11"], ["1_1", "11", "2"])
    assert found.test.tolist() == [False, True, False]
    found = read(write(path, "1_1,1_2\n3,4\n"), target="1_1")
    assert found.x[0].tolist() == [[4]]
    refused(write(path, "label,a\n1,1_0\n"), "line 2: a must be a number, got '1_0'", target="label")


def test_quotes_and_blank_lines_above(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '"0","0.5","1.5"\n"1","2","3"\n')
    assert_same(read(path, target="0").x, [np.array([row], np.float32) for row in ([0.5, 1.5], [2, 3])])
    for header, target in (("a,b,label\n", "label"), ("", "2")):
        found = read(write(path, f"\n  \n{header}1,2,7\n3,4,8\n"), target=target)
        assert_same(found.x, [np.array([row], np.float32) for row in ([1, 2], [3, 4])])
    refused(write(path, "\n\na,label\n1,x\nq,y\n"), "line 5: a must be a number", target="label")
    refused(write(path, "\n \n"), "is empty", target="label")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_counted_as_an_editor_does(end: str, tmp_path: Path) -> None:
    """With line breaks in cells, and a blank line that is no row."""
    rows = ['id,t,"no', 'te",a,label', '0,0,"x', 'y",1,a', "", '0,1,"x', 'y",{},a', "1,0,z,1,b", ""]
    path = tmp_path / "a.csv"
    options: dict[str, Any] = {"id": "id", "time": "t", "target": "label", "features": ("a",)}
    path.write_bytes(end.join(rows).format("abc").encode())
    refused(path, "line 6: a must be a number, got 'abc'", **options)
    path.write_bytes(end.join(rows).format("2").encode())
    assert [one.tolist() for one in read(path, **options).x] == [[[1, 2]], [[1]]]


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_dates_that_are_far_apart(unit: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'indrnn[data]'")
    days = ["2260-01-03", "1680-01-01", "1680-01-02"] if unit == "ns" else ["9999-12-31", "0900-01-01", "0900-01-02"]
    times = np.array(days, dtype=f"datetime64[{unit}]")
    frame = pandas.DataFrame({"t": times, "a": [3.0, 1.0, 2.0], "label": ["x"] * 3})
    frame.to_parquet(tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet", time="t", target="label", time_differences=True)
    last = (np.datetime64(days[0], "s") - np.datetime64(days[2], "s")).astype(np.float32)
    assert found.x[0].tolist() == [[1, 2, 3], [0, 86400, last]]


@pytest.mark.skipif(int(pandas.__version__.split(".")[0]) < 3, reason="pandas 2 reads dates as nanoseconds")
def test_far_dates_in_text(tmp_path: Path) -> None:
    text = "t,a,label\n9999-12-31,3,x\n3000-01-03,2,x\n2000-01-03{},1,x\n"
    path = write(tmp_path / "a.csv", text.format(""))
    assert read(path, time="t", target="label").x[0].tolist() == [[1, 2, 3]]
    write(path, text.format(" 00:00:00.123456789"))
    refused(path, "line 2: t (time)", "in nanoseconds", time="t", target="label")


def test_times_in_nanoseconds(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "t,a,label\n1700000000000000100,2,x\n1700000000000000000,1,x\n")
    found = read(path, time="t", target="label", time_differences=True)
    assert found.x[0].tolist() == [[1, 2], [0, 100]]


@pytest.mark.parametrize("index", ["id", ["id", "t"], "row"])
def test_parquet_with_an_index_and_bytes(index: Any, tmp_path: Path) -> None:
    """The index is there for options that name it, and is no feature."""
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'indrnn[data]'")
    path = tmp_path / "a.parquet"
    frame = pandas.DataFrame({"id": [0, 0, 1], "t": [1, 0, 0], "row": [7, 8, 9], "a": [2.0, 1.0, 3.0]})
    frame["label"] = [b"x", b"x", b"y"]
    frame = frame if index == "row" else frame.drop(columns="row")
    frame.set_index(index).to_parquet(path)
    found = read(path, id="id", time="t", target="label")
    assert found.y is not None
    assert (found.channels, [one.tolist() for one in found.x]) == (("a",), [[[1, 2]], [[3]]])
    assert found.y.tolist() == ["x", "y"]
    frame.set_index("id", drop=False).to_parquet(path)
    assert read(path, id="id", time="t", target="label", features=("a",)).names == found.names
    frame["label"] = [b"x", b"x", b"\xff"]
    frame.to_parquet(path)
    refused(path, "label (target) must be UTF-8", "xff", id="id", time="t", target="label", features=("a",))


def test_semicolons_a_byte_order_mark_and_compression(tmp_path: Path) -> None:
    import gzip

    content = "\ufefflabel;s0;s1\r\nNA;1;2\r\nx;3;4\r\n".encode()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content))
    found = read(tmp_path / "a.csv.gz", target="label")
    assert found.y is not None
    assert (found.y.tolist(), found.x[1].tolist()) == (["NA", "x"], [[3, 4]])


def test_labels_that_are_not_needed_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "s0,s1\n1,2\n")
    found = read(path, target="label", target_needed=False)
    assert found.y is None
    refused(path, "target", "no 'label'", target="label")


LONG_WRONG = [
    ("b,1,4,40", "b,2,4,40", ["line 2 and line 4", "run b", "the same t, 2"]),
    ("a,2,2,20", "a,2,zwei,20", ["line 7: ax must be a number, got 'zwei'"]),
    ("a,2,2,20", 'a,2,"2,5",20', ["line 7: ax must be a number, got '2,5'", "write 1.5"]),
    ("a,2,2,20,bob,sit", "a,2,2,20,bob,walk", ["label (target) must be the same in all of a", "sit and walk"]),
    ("a,2,2,20,bob,sit", "a,2,2,20,ann,sit", ["who (group, test_where) must be the same"]),
    ("a,2,2,20,bob,sit", "a,2,2,20,bob,", ["line 7: label (target) must not be empty"]),
    ("a,2,2,20", ",2,2,20", ["line 7: run (id) must not be empty"]),
    ("a,2,2,20", "a,,2,20", ["line 7: t (time) must not be empty"]),
    ("a,2,2,20", "a,soon,2,20", ["t (time) must be a number or a date", "'"]),
    ("a,2,2,20", "a,2,inf,20", ["series 1 (a), channel ax, step 1 is infinite"]),
    ("a,2,2,20,bob,sit", "a,2,2,20,bob,sit,and,more", ["cannot be read as a table", "7"]),
    ("run,t,ax,ay", "run,t,ay,ay", ["each column once"]),
]


@pytest.mark.parametrize(("one", "other", "parts"), LONG_WRONG, ids=[other for _, other, _ in LONG_WRONG])
def test_a_long_table_that_is_wrong(one: str, other: str, parts: list[str], tmp_path: Path) -> None:
    assert LONG.count(one) == 1
    refused(write(tmp_path / "a.csv", LONG.replace(one, other)), *parts, **LONG_OPTIONS)


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", LONG)
    for option in ("id", "time", "target", "group"):
        refused(path, f"{option}: ", "no 'lebel'", "did you mean label?", **LONG_OPTIONS | {option: "lebel"})
    refused(path, "features: ", "'az'", **LONG_OPTIONS, features=("az",))
    refused(path, "--target", "run, t, ax", **LONG_OPTIONS | {"target": None})
    refused(write(path, "a,label\n"), "at least one row", target="label")
    refused(write(path, "label\nx\n"), "no column of values", target="label")


@pytest.mark.parametrize(("name", "package"), [("a.csv", "pandas"), ("a.parquet", "pyarrow")])
def test_a_missing_package_is_named(name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / name, LONG)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"needs {package}: pip install 'indrnn\[data\]'"):
        read(path, **LONG_OPTIONS)


# ---- conditions and labels


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("n<5", [1, 0, 0]),
        ("n <= 5", [1, 1, 0]),
        ("n>5", [0, 0, 1]),
        ("n=5", [0, 1, 0]),
        ("n==5.0,7", [0, 1, 1]),
        ("s != b", [1, 0, 0]),
        ("s==a, c", [1, 0, 0]),
        ("flag", [0, 1, 1]),
        ("share", [1, 0, 0]),
        ("long==1700000000000000001", [0, 1, 0]),
        ("code==11", [0, 1, 0]),
        ("word", [0, 0, 1]),
    ],
)
def test_conditions(condition: str, wanted: list[int]) -> None:
    arrays = {"n": np.array([3, 5, 7]), "s": np.array(["a", "b", "b"]), "flag": np.array([False, True, True])}
    arrays["word"] = np.array(["train", "valid", "Test"])
    arrays |= {"share": np.array([1.0, 0.0, 0.5]), "code": np.array(["1_1", "11", "1_1_"])}
    arrays["long"] = 1700000000000000000 + np.arange(3)
    assert where(condition, arrays, Path("a")).tolist() == [bool(each) for each in wanted]


@pytest.mark.parametrize(
    ("condition", "part"),
    [("<5", "test_where must be"), ("m<5", "no 'm'"), ("s<5", "numbers"), ("n<5", "numbers"), ("f<1_1", "numbers")],
)
def test_conditions_that_are_wrong(condition: str, part: str) -> None:
    arrays = {"s": np.array(["a", "b"]), "n": np.array(["1_1", "2"]), "f": np.array([1.0, 2.0])}
    with pytest.raises(ValueError, match=part):
        where(condition, arrays, Path("a"))


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["1", "-2"], [1, -2]),
        (["1", "2.5"], [1.0, 2.5]),
        (["007", "008"], ["007", "008"]),
        (["1", "x"], ["1", "x"]),
        (["1_1", "11"], ["1_1", "11"]),
        (["12345678901234567890", "12345678901234567891"], ["12345678901234567890", "12345678901234567891"]),
    ],
)
def test_labels_in_text(texts: list[str], wanted: list[Any]) -> None:
    found = parsed(np.array(texts)).tolist()
    assert found == wanted
    assert [type(each) for each in found] == [type(each) for each in wanted]


# ---- real files


FSDD = Path(os.environ.get("INDRNN_DATA") or "nowhere") / "audio" / "fsdd.npz"


@pytest.mark.skipif(not FSDD.is_file(), reason="INDRNN_DATA names no folder with audio/fsdd.npz in it")
def test_free_spoken_digits_as_they_are() -> None:
    path = FSDD
    found = read(path, x="audio", target="digit", group="speaker", test_where="index<5")
    assert found.test is not None
    assert found.groups is not None
    assert found.y is not None
    assert (len(found), int(found.test.sum()), int(found.lengths.max())) == (3000, 300, 18262)
    assert round(float(found.lengths.mean())) == 3499
    assert np.unique(found.y).tolist() == list(range(10))
    with np.load(path) as file:
        np.testing.assert_array_equal(found.x[1][0], file["audio"][2384 : 2384 + 4727])
