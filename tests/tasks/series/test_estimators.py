"""Estimators: what they learn, scikit-learn's conventions, files, streams and explanations."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import indrnn
from indrnn import IndRNNClassifier, IndRNNRegressor
from indrnn.tasks.runs import new_model
from indrnn.tasks.series import Collection
from indrnn.tasks.series.task import Part, SeriesTask

Problem = tuple[list[Any], Any]
QUICK: dict[str, Any] = {"steps": 40, "hidden_size": 16, "random_state": 0, "lr": 0.01}


@pytest.fixture(scope="module", name="problem")
def _problem() -> Problem:
    """Series of two channels and several lengths; the class is whether the first channel rises."""
    draw = np.random.default_rng(0)
    y = draw.integers(2, size=48)
    X = [draw.normal(size=(2, n)) for n in draw.integers(20, 33, size=48)]
    for x, rises in zip(X, y, strict=True):
        x[0] += (1 if rises else -1) * np.linspace(-2, 2, x.shape[1])
    return X, np.array(["down", "up"])[y]


@pytest.fixture(scope="module", name="fitted")
def _fitted(problem: Problem) -> IndRNNClassifier:
    return IndRNNClassifier(bidirectional=False, **QUICK).fit(*problem)


def test_learns_classes_of_series_of_any_length(problem: Problem, fitted: IndRNNClassifier) -> None:
    X, y = problem
    assert fitted.score(X, y) > 0.9
    probabilities = fitted.predict_proba(X)
    assert probabilities.shape == (48, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert fitted.classes_.tolist() == ["down", "up"]
    assert np.array_equal(fitted.predict(X), fitted.classes_[probabilities.argmax(1)])
    np.testing.assert_allclose(fitted.predict_proba(X[5:6])[0], probabilities[5], atol=1e-5)


def test_same_seed_same_result_and_nothing_on_disk(
    problem: Problem, fitted: IndRNNClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    again = IndRNNClassifier(bidirectional=False, **QUICK).fit(*problem)
    assert np.array_equal(again.predict_proba(problem[0]), fitted.predict_proba(problem[0]))
    assert list(tmp_path.iterdir()) == []


def test_saved_pickled_and_trained_in_a_folder_are_the_same(
    problem: Problem, fitted: IndRNNClassifier, tmp_path: Path
) -> None:
    expected = fitted.predict_proba(problem[0])
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(problem[0]), expected)
    fitted.save(tmp_path / "saved")
    loaded = indrnn.load(tmp_path / "saved")
    assert (loaded.get_params(), loaded.plan_) == (fitted.get_params(), fitted.plan_)
    assert np.array_equal(loaded.predict_proba(problem[0]), expected)
    run = tmp_path / "run"
    IndRNNClassifier(bidirectional=False, **QUICK).fit(*problem, out=run)
    assert {"config.json", "metrics.jsonl", "result.json", "checkpoints"} <= {each.name for each in run.iterdir()}
    assert np.array_equal(indrnn.load(run).predict_proba(problem[0]), expected)
    with pytest.raises(ValueError, match="holds something already"):
        IndRNNClassifier(bidirectional=False, **QUICK).fit(*problem, out=run)


@pytest.mark.parametrize("options", [{"bidirectional": False}, {}, {"bidirectional": False, "pool": "last"}])
def test_a_stream_says_what_predict_says_of_the_series_so_far(problem: Problem, options: dict[str, Any]) -> None:
    model = IndRNNClassifier(**QUICK | {"steps": 3} | options).fit(*problem)
    x, stream = problem[0][0], model.stream()
    for step in range(x.shape[1]):
        answer = stream.push(x[:, step])
        if step % 5 == 0:
            np.testing.assert_allclose(answer, model.predict_proba([x[:, : step + 1]])[0], atol=1e-5)
    with pytest.raises(ValueError, match=r"\(2,\)"):
        stream.push([1.0])


def test_times_of_a_clock_survive(tmp_path: Path) -> None:
    """Unix times have steps of two minutes in float32."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12, 2, 9))
    x[:, 0] = draw.exponential(size=(12, 9)).cumsum(1)
    clock = x + np.array([1.7e9, 0.0])[:, None]
    y = np.arange(12) % 2
    options: dict[str, Any] = {"time_channel": 0, "steps": 2, "hidden_size": 4, "layers": 1, "random_state": 0}
    model = IndRNNClassifier(bidirectional=False, **options).fit(x, y)
    again = IndRNNClassifier(bidirectional=False, **options).fit(clock, y)
    np.testing.assert_allclose(again.predict_proba(clock), model.predict_proba(x), atol=1e-4)
    np.testing.assert_allclose(again.predict_proba(list(clock)), model.predict_proba(x), atol=1e-4)
    stream = again.stream()
    for t in range(9):
        answer = stream.push(clock[0, :, t])
    np.testing.assert_allclose(answer, model.predict_proba(x[:1])[0], atol=1e-4)


@pytest.mark.parametrize("channel", ["0", 1.5])
def test_a_time_channel_that_is_no_number(channel: Any) -> None:
    with pytest.raises(ValueError, match="time_channel must be the number of a channel"):
        IndRNNClassifier(time_channel=channel).fit(np.zeros((4, 2, 6)), [0, 1, 0, 1])


def test_a_stream_of_several_numbers_at_every_step() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(8, 2, 6)), draw.normal(size=(8, 3, 6))
    options: dict[str, Any] = {"steps": 2, "hidden_size": 4, "layers": 1, "random_state": 0, "front": False}
    model = IndRNNRegressor(per_step=True, bidirectional=False, **options).fit(x, y)
    np.testing.assert_allclose(model.stream().push(x[0]), np.asarray(model.predict(x))[0][:, -1], rtol=1e-4)


def test_weights_of_series_count_for_their_steps() -> None:
    draw = np.random.default_rng(0)
    x, numbers, classes = draw.normal(size=(6, 2, 5)), draw.normal(size=(6, 5)), draw.integers(2, size=(6, 5))
    weights = np.array([1.0, 0, 2, 0, 0, 1])
    options: dict[str, Any] = {"steps": 2, "hidden_size": 4, "layers": 1, "random_state": 0, "per_step": True}
    for model, y in ((IndRNNRegressor(**options), numbers), (IndRNNClassifier(**options), classes)):
        several = [0, 2, 2, 5]
        assert model.fit(x, y).score(x, y, weights) == pytest.approx(model.score(x[several], y[several]))


def test_a_group_is_left_to_train_on() -> None:
    x, y = np.random.default_rng(0).normal(size=(8, 2, 6)), np.arange(8) % 2
    options: dict[str, Any] = {"steps": 2, "hidden_size": 4, "layers": 1, "random_state": 0}
    fitting = IndRNNClassifier(validation=0.75, **options).fitting(x, y, groups=y)
    kept, held = fitting.split()
    assert sorted(set(y[kept])) != sorted(set(y[held]))
    assert len(kept) == len(held) == 4


def test_a_run_goes_on_without_a_seed(problem: Problem, tmp_path: Path) -> None:
    x, y = problem
    options: dict[str, Any] = {"steps": 2, "hidden_size": 4, "layers": np.int64(1), "dropout": np.float32(0.5)}
    first = IndRNNClassifier(**options).fit(x, y, out=tmp_path / "run").predict_proba(x)
    again = IndRNNClassifier(**options).fit(x, y, out=tmp_path / "run", resume=True).predict_proba(x)
    np.testing.assert_array_equal(first, again)


def test_a_long_series_is_answered_alike_alone_and_among_others() -> None:
    """Behind strides, in a batch of other lengths: network and loop see it so in training, and a user alone."""
    draw = np.random.default_rng(1)
    X = [draw.normal(size=(1, length)) for length in (400, 700, 512, 1001)]
    model = IndRNNClassifier(**QUICK | {"steps": 2}).fit(X, [0, 1] * 2)
    assert np.prod(model.plan_.network.strides) > 1
    together = model.predict_proba(X)
    for i, one in enumerate(X):
        np.testing.assert_allclose(model.predict_proba([one])[0], together[i], atol=1e-5)


@pytest.mark.parametrize(("length", "stride"), [(1100, 4), (2000, 16)], ids=["strided", "raw"])
def test_a_stream_over_strides(length: int, stride: int) -> None:
    X = np.random.default_rng(1).normal(size=(8, 1, length))
    model = IndRNNClassifier(**QUICK | {"steps": 2}, bidirectional=False).fit(X, [0, 1] * 4)
    assert np.prod(model.plan_.network.strides) == stride
    assert model.preparation_.normalise_rms == (stride == 16)
    stream = model.stream()
    for start, stop in ((0, 3), (3, 501), (501, 502), (502, length)):
        answer = stream.push(X[0, :, start:stop])
        np.testing.assert_allclose(answer, model.predict_proba([X[0, :, :stop]])[0], atol=1e-5)


def test_explanation_is_gradient_times_input(problem: Problem, fitted: IndRNNClassifier) -> None:
    x = problem[0][0].astype(np.float32)
    found = fitted.explain(x, "up")
    assert found.contributions.shape == x.shape
    assert found.step == np.abs(found.contributions.sum(0)).argmax()
    # A difference quotient along the input at one step, of the logit
    scale, mean = np.array(fitted.preparation_.scale), np.array(fitted.preparation_.mean)
    moved = []
    for factor in (0.99, 1.01):
        near = x.astype(np.float64)
        near[:, found.step] = (near[:, found.step] - mean) * factor + mean
        inputs = fitted.preparation_(near)
        moved.append(float(fitted.models_[0](inputs.unsqueeze(1))[0][0, 1].detach()))
    assert scale.all()
    assert (moved[1] - moved[0]) / 0.02 == pytest.approx(found.contributions[:, found.step].sum(), rel=0.2, abs=1e-3)
    assert found.neurons
    assert found.neurons[0]["remembered"] >= found.neurons[-1]["remembered"] > 0
    with pytest.raises(ValueError, match="one of the classes"):
        fitted.explain(x, "sideways")


def test_several_labels_at_once(problem: Problem) -> None:
    X, y = problem
    labels = np.stack([y == "up", y == "down", np.ones(48)], 1).astype(int)
    model = IndRNNClassifier(**QUICK).fit(X, labels)
    assert model.predict(X).shape == model.predict_proba(X).shape == (48, 3)
    assert model.score(X, labels) > 0.9


def test_a_class_and_a_number_at_every_step() -> None:
    draw = np.random.default_rng(0)
    X = [draw.normal(size=(1, n)) for n in draw.integers(10, 20, size=24)]
    classes = [(x[0] > 0).astype(int) for x in X]
    model = IndRNNClassifier(per_step=True, front=False, **QUICK).fit(X, classes)
    assert [each.shape for each in model.predict(X)] == [each.shape for each in classes]
    assert model.score(X, classes) > 0.9
    numbers = [3 + 2 * x[0] for x in X]
    regressor = IndRNNRegressor(per_step=True, front=False, **QUICK).fit(X, numbers)
    assert regressor.score(X, numbers) > 0.8
    with pytest.raises(ValueError, match="a target for every step"):
        IndRNNClassifier(per_step=True, **QUICK).fit(X, [each[1:] for each in classes])


def test_regressor_in_the_shape_of_its_targets(problem: Problem) -> None:
    X, _ = problem
    y = np.array([x[0, -1] - x[0, 0] for x in X]) * 100 + 1000
    model = IndRNNRegressor(**QUICK).fit(X, y)
    assert model.predict(X).shape == (48,)
    assert model.score(X, y) > 0.5
    pairs = np.stack([y, -y], 1).astype(np.float32)
    both = IndRNNRegressor(**QUICK | {"steps": 3}).fit(X, pairs)
    assert both.predict(X).shape == (48, 2)
    assert both.score(X, pairs) == both.score(X, pairs, np.ones(48))  # in float64 either way


def test_missing_values_constant_channels_and_many_of_them() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(12, 1000, 5))
    X[:, 3] = 7.0
    X[draw.random(X.shape) < 0.2] = np.nan
    with pytest.warns(UserWarning, match="12 series of 1000 channels and 5 steps"):
        model = IndRNNClassifier(**QUICK | {"steps": 2}).fit(X, [0, 1] * 6)
    assert model.preparation_.input_size == 2000
    assert np.isfinite(model.predict_proba(X)).all()


def test_weights_of_classes_and_series() -> None:
    X = np.zeros((30, 5)) + np.random.default_rng(0).normal(size=(30, 5)) * 1e-3
    y = np.repeat([0, 1], [25, 5])
    plain = IndRNNClassifier(**QUICK | {"steps": 60}, augment=False).fit(X, y)
    balanced = IndRNNClassifier(**QUICK | {"steps": 60}, augment=False, class_weight="balanced").fit(X, y)
    weighted = IndRNNClassifier(**QUICK | {"steps": 60}, augment=False).fit(X, y, sample_weight=np.where(y, 5.0, 1.0))
    means = [each.predict_proba(X)[:, 1].mean() for each in (plain, balanced, weighted)]
    assert means[0] < means[1] - 0.1
    assert means[0] < means[2] - 0.1
    with pytest.raises(ValueError, match="class_weight must name classes"):
        IndRNNClassifier(class_weight={7: 1}, **QUICK).fit(X, y)


def test_effort_best_averages_an_ensemble(problem: Problem, tmp_path: Path) -> None:
    model = IndRNNClassifier("best", members=2, **QUICK | {"steps": 3}).fit(*problem)
    assert len(model.models_) == 2
    model.save(tmp_path)
    assert np.array_equal(indrnn.load(tmp_path).predict_proba(problem[0]), model.predict_proba(problem[0]))
    assert IndRNNClassifier("best").fitting(*problem).plan.members == 5


def test_fitting_says_what_would_be_done(problem: Problem) -> None:
    fitting = IndRNNClassifier(random_state=0).fitting(Collection.from_arrays(*problem))
    assert "IndRNN layers of 64" in fitting.plan.describe()
    assert fitting.estimate()["seconds"] > 0


def test_memory_of_a_batch_is_what_autograd_keeps() -> None:
    """At least the features of each layer and step and all weights four times; twice the steps, about twice as much."""
    X = np.random.default_rng(0).normal(size=(20, 1, 400))
    model = IndRNNClassifier(random_state=0, front=False, hidden_size=32)
    short, long = (model.fitting(X[..., :steps], [0, 1] * 10).estimate()["bytes"] for steps in (200, 400))
    fitting = model.fitting(X, [0, 1] * 10)
    weights = 4 * 4 * sum(each.numel() for each in new_model(fitting).parameters())
    assert long > weights + 2 * 400 * fitting.plan.batch_size * 64 * 4  # two layers, both directions, float32
    assert long - weights == pytest.approx(2 * (short - weights), rel=0.05)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((4, 5)), ["a"] * 4, "at least two classes"),
        (np.zeros((4, 5)), None, "requires y"),
        (np.zeros((4, 5)), [0, 1, 1], "4, got"),
        (np.zeros((1, 5)), [0], "1 sample"),
        (np.zeros((4, 5)), [0.5, 1, 1, 0], "Unknown label type"),
        (np.zeros((4, 5)), [0, 1, 1, np.nan], "NaN"),
        (np.zeros((4, 5)), ["a", None, "b", "a"], "entry 1 is None"),
        (np.zeros((4, 5)), np.array(["a", 1, "b", 2], dtype=object), "of one kind, .* got int, str together"),
        (np.zeros((4, 5)), ["a"] * 4, "one class, 'a'"),
    ],
)
def test_bad_input_is_named(X: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IndRNNClassifier().fit(X, y)


def test_bad_options_and_other_channels(problem: Problem, fitted: IndRNNClassifier) -> None:
    with pytest.raises(ValueError, match="effort must be one of"):
        IndRNNClassifier("fast").fit(*problem)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="channels of training, 2, got 3"):
        fitted.predict(np.zeros((1, 3, 20)))
    with pytest.raises(ValueError, match="not fitted"):
        IndRNNClassifier().predict(problem[0])
    with pytest.warns(UserWarning, match="one series each: 'alone'"):
        IndRNNClassifier().fitting(problem[0], [*problem[1][:-1], "alone"])


def test_a_task_is_known_by_every_number_of_its_series() -> None:
    """So that a run does not go on with other data: one step of many is changed."""
    x, y = torch.randn(200, 1), torch.tensor(0)
    other = x.clone()
    other[101] += 1
    known, changed = (SeriesTask(Part([each], [y]), kind="classes").describe() for each in (x, other))
    assert known["train"].pop("checksum") != changed["train"].pop("checksum")
    assert known == changed


def test_an_explanation_does_not_depend_on_the_clock() -> None:
    draw = np.random.default_rng(0)
    times = np.cumsum(draw.uniform(0.1, 2, size=(12, 1, 20)), 2)
    X = np.concatenate([times, draw.normal(size=(12, 1, 20))], 1)
    model = IndRNNClassifier(time_channel=0, **QUICK).fit(X, [0, 1] * 6)
    later = X[0] + [[1.7e9], [0.0]]
    np.testing.assert_allclose(model.explain(later).contributions, model.explain(X[0]).contributions, atol=1e-5)


def test_one_group_is_not_divided(problem: Problem) -> None:
    X, y = problem
    ones = np.ones(len(X))
    with pytest.raises(ValueError, match="at least two values"):
        IndRNNClassifier(validation=0.2, **QUICK).fitting(X, y, groups=ones)
    many = (X * 10, np.tile(y, 10))
    for count, share in ((9, 0.0), (10, 0.1)):  # of few, one is too much to hold back
        assert IndRNNClassifier(**QUICK).fitting(*many, groups=np.arange(480) % count).plan.validation == share
    assert IndRNNClassifier(validation=0.2, **QUICK).fitting(*many, groups=np.arange(480) % 9).plan.validation == 0.2
    fitting = IndRNNClassifier(**QUICK).fitting(*many, groups=np.ones(480))
    assert len(fitting.split()[1]) == 0
    assert "no series held back" in fitting.plan.describe()
    with pytest.raises(ValueError, match=r"groups must be of one kind, .* got int and str"):
        IndRNNClassifier(**QUICK).fitting(X, y, groups=np.array([1, "a"] * 24, dtype=object))
    with pytest.raises(ValueError, match=r"groups must have the shape \(48,\)"):
        IndRNNClassifier(**QUICK).fitting(X, y, groups=np.stack([ones, ones], 1))


def test_series_of_no_weight_are_neither_trained_on_nor_held_back(problem: Problem) -> None:
    X, y = problem
    weights = np.zeros(48)
    weights[::3] = 1
    kept, held = IndRNNClassifier(validation=0.5, **QUICK).fitting(X, y, weights).split()
    assert sorted([*kept, *held]) == list(range(0, 48, 3))
    assert len(held)


@pytest.mark.parametrize("weight", [-1.0, np.inf, np.nan])
def test_class_weights_are_checked(weight: float, problem: Problem) -> None:
    with pytest.raises(ValueError, match="class_weight must hold finite numbers of at least 0"):
        IndRNNClassifier(class_weight={"up": weight}, **QUICK).fitting(*problem)


def test_a_list_of_series_of_one_length_says_nothing_of_other_lengths() -> None:
    draw = np.random.default_rng(0)
    model = IndRNNClassifier(steps=1, hidden_size=4).fit([draw.normal(size=12) for _ in range(6)], [0, 1] * 3)
    assert model.n_features_in_ == 1
    assert model.predict([draw.normal(size=9)] * 2).shape == (2,)


def test_names_of_columns_are_kept_in_the_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(8, 3)), columns=["a", "b", "c"])
    IndRNNClassifier(steps=1, hidden_size=4).fit(X, [0, 1] * 4).save(tmp_path / "model")
    assert indrnn.load(tmp_path / "model").feature_names_in_.tolist() == ["a", "b", "c"]
