"""Splits of NTU RGB+D: the published numbers, from the published lists."""

from __future__ import annotations

import os
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from indrnn.tasks.skeleton.ntu.splits import missing, ntu_split, parts_of, summary
from indrnn.tasks.skeleton.recordings import Recordings

TRAINING_OF_60 = (1, 2, 4, 5, 8, 9, 13, 14, 15, 16, 17, 18, 19, 25, 27, 28, 31, 34, 35, 38)  # as published


def recordings_of(names: list[str]) -> Recordings:
    """One frame each."""
    n = len(names)
    parts = [parts_of(name) for name in names]
    fields = {key: np.array([part[key] for part in parts if part is not None]) for key in parts_of(names[0]) or {}}
    frames = np.zeros((n, 2, 25, 3), dtype=np.float32)
    fields["name"] = np.array(names)
    return Recordings(frames, np.ones(n, dtype=np.int64), fields["action"] - 1, fields["performer"], fields)


@pytest.fixture(scope="module")
def all_of_60() -> Recordings:
    """Names as those of all 56,880 samples.

    Each of 158 pairs of a setup and a performer is 3 cameras × 2 replications × 60 actions; 112 of them are of training
    subjects, as 40,320 and 16,560 samples say. The pairs in the list of missing samples are known, the others made up.
    """
    pairs = {(name[:4], name[8:12]) for name in missing() if int(name[1:4]) <= 17}
    for trains, count in ((True, 112), (False, 46)):
        performers = [p for p in range(1, 41) if (p in TRAINING_OF_60) == trains]
        made_up = ((f"S{s:03}", f"P{p:03}") for s, p in product(range(1, 18), performers))
        have = {pair for pair in pairs if (int(pair[1][1:]) in TRAINING_OF_60) == trains}
        while len(have) < count:
            have.add(next(made_up))
        pairs |= have
    ends = [f"R{r:03}A{a:03}" for r, a in product((1, 2), range(1, 61))]
    names = [f"{s}C{c:03}{p}{end}" for (s, p), c in product(sorted(pairs), (1, 2, 3)) for end in ends]
    assert len(names) == 56_880
    return recordings_of(sorted(names))


def test_numbers_of_ntu_60(all_of_60: Recordings) -> None:
    said: list[str] = []
    for protocol, train, test in (("60-cs", 40_091, 16_487), ("60-cv", 37_646, 18_932)):
        trained, validation, tested = ntu_split(all_of_60, protocol, say=said.append)
        assert (len(trained) + len(validation), len(tested)) == (train, test)
        assert len(validation) == round(0.05 * train)
        joined = np.concatenate([trained, validation, tested])
        assert len(np.unique(joined)) == len(joined) == 56_578
        assert not missing() & set(all_of_60.fields["name"][joined])
    assert said == []
    assert summary(all_of_60)[:2] == [
        "60-cs: 40,091 train, 16,487 test (complete)",
        "60-cv: 37,646 train, 18,932 test (complete)",
    ]


def test_subjects_and_cameras(all_of_60: Recordings) -> None:
    train, validation, test = ntu_split(all_of_60, "60-cs")
    assert set(all_of_60.subject[train]) == set(all_of_60.subject[validation]) == set(TRAINING_OF_60)
    assert not set(all_of_60.subject[test]) & set(TRAINING_OF_60)
    train, validation, test = ntu_split(all_of_60, "60-cv")
    camera = all_of_60.fields["camera"]
    assert [set(camera[part]) for part in (train, validation, test)] == [{2, 3}, {2, 3}, {1}]


def test_samples_that_lack_are_said(all_of_60: Recordings) -> None:
    used = [name for name in all_of_60.fields["name"] if name not in missing()]
    said: list[str] = []
    ntu_split(recordings_of(used[3:]), "60-cs", say=said.append)
    assert said == ["60-cs is not complete: 3 of 56,578 samples lack"]
    assert "(3 of 56,578 samples lack)" in summary(recordings_of(used[3:]))[0]


def test_numbers_that_are_not_the_published_ones_are_refused(all_of_60: Recordings) -> None:
    names = [str(name) for name in all_of_60.fields["name"]]
    used = [name for name in names if name not in missing()]
    at = next(i for i, name in enumerate(used) if name[8:12] == "P003")
    unused = next(f"S017C001P001R001A{a:03}" for a in range(1, 61) if f"S017C001P001R001A{a:03}" not in names)
    with pytest.raises(ValueError, match="60-cs: 40,092 samples train and 16,486 test, and published are 40,091 and"):
        ntu_split(recordings_of([*used[:at], *used[at + 1 :], unused]), "60-cs")
    with pytest.raises(ValueError, match="published are 40,091 and 16,487"):
        ntu_split(recordings_of([*used, unused]), "60-cs")


GRID = [
    f"S{s:03}C{c:03}P{p:03}R001A{a:03}"
    for s, c, p, a in product((1, 2, 17, 18, 31, 32), (1, 2, 3), (1, 3, 45, 44, 103, 106), (1, 60, 61, 120))
]


def test_a_share_for_validation_that_leaves_nothing_to_train_with() -> None:
    with pytest.raises(ValueError, match=r"must leave recordings to train on, and 0\.999 of \d+ leaves none"):
        ntu_split(recordings_of(GRID), "60-cs", validation=0.999)


def test_ntu_120_by_subject_and_by_setup() -> None:
    of = recordings_of(GRID)
    train, validation, test = ntu_split(of, "120-cs")
    assert set(of.subject[np.concatenate([train, validation])]) == {1, 45, 103}
    assert set(of.subject[test]) == {3, 44, 106}
    train, validation, test = ntu_split(of, "120-xset")
    assert set(of.fields["setup"][np.concatenate([train, validation])]) == {2, 18, 32}
    assert set(of.fields["setup"][test]) == {1, 17, 31}
    assert len(train) + len(validation) + len(test) == len(GRID)
    for part, other in zip((train, validation, test), ntu_split(of, "120-cv"), strict=True):
        assert np.array_equal(part, other)


def test_ntu_60_within_120() -> None:
    of = recordings_of(GRID)
    chosen = np.concatenate(ntu_split(of, "60-cv"))
    assert set(of.fields["setup"][chosen]) == {1, 2, 17}


def test_validation_goes_by_seed(all_of_60: Recordings) -> None:
    (_, first, test), (_, again, _), (_, other, other_test) = (
        ntu_split(all_of_60, "60-cs", seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert len(np.intersect1d(first, other)) < 300  # of 2,005; 100 by chance
    assert np.array_equal(test, other_test)
    train, none, _ = ntu_split(all_of_60, "60-cs", validation=0)
    assert len(none) == 0
    assert len(train) == 40_091
    assert (np.diff(train) > 0).all()


def test_names() -> None:
    assert parts_of("S001C002P003R002A013") == {
        "setup": 1,
        "camera": 2,
        "performer": 3,
        "replication": 2,
        "action": 13,
    }
    wrong = ["", "S001C002P003R002A013.skeleton", "S001C002P003R002", "s001c002p003r002a013", "S001C004P003R002A013"]
    wrong += ["S033C001P001R001A001", "S001C001P107R001A001", "S001C001P001R003A001", "S001C001P001R001A121"]
    wrong += ["S000C001P001R001A001", "S001C001P001R001A000", "S٠٠١C001P001R001A001", "S001C001P001R001A001\n"]
    assert [parts_of(name) for name in wrong] == [None] * len(wrong)


def test_lists() -> None:
    assert len(missing()) == 535
    assert sum(int(name[1:4]) <= 17 for name in missing()) == 302
    assert all(parts_of(name) for name in missing())
    performers = recordings_of([f"S018C001P{p:03}R001A001" for p in range(1, 107)])
    train, validation, _ = ntu_split(performers, "120-cs")
    assert len(train) + len(validation) == 53


LISTS = Path(os.environ.get("INDRNN_DATA") or "nowhere") / "ntu_meta"


@pytest.mark.skipif(not LISTS.is_dir(), reason="INDRNN_DATA names no folder with ntu_meta, the published lists, in it")
def test_lists_are_the_published_ones() -> None:
    names = set()
    for path in LISTS.glob("*missing_skeletons.txt"):
        names |= set(re.findall(r"^S\w{19}$", path.read_text(), re.MULTILINE))
    assert names == missing()


@pytest.mark.parametrize(
    ("protocol", "options", "word"),
    [
        ("60", {}, "protocol must be one of '60-cs', '60-cv', '120-cs', '120-xset', '120-cv', got '60'"),
        ("60-cs", {"validation": 1.0}, "validation must be a number in"),
        ("60-cs", {"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_bad_options_are_refused(protocol: str, options: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=re.escape(word)):
        ntu_split(recordings_of(GRID), protocol, **options)  # type: ignore[arg-type]


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="60-cs: there are 2 samples to train with and 0 to test with"):
        ntu_split(recordings_of(["S001C001P001R001A001", "S001C001P001R001A002"]), "60-cs")
    ones = np.ones(2, dtype=np.int64)
    with pytest.raises(ValueError, match="recordings must be those of NTU RGB"):
        ntu_split(Recordings(np.zeros((2, 1, 20, 3), dtype=np.float32), ones, ones, ones), "60-cs")
