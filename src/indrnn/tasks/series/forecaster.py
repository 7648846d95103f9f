"""`IndRNNForecaster`: forecasts of one or many series, with prediction intervals and naive baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from ...checks import check_count
from .collection import Array, Collection, as_array
from .defaults import Core, Effort, Plan, Shape, check_effort, plan
from .estimator import Estimator, answer, seed_of
from .fitting import Fitting
from .intervals import KEPT, RECENT, checksum, end_of, half_widths
from .naive import find_period, naive, seasonal_naive
from .preparation import Preparation
from .targets import Target

_AT_ONCE = 1024  # windows that go through the networks together


class IndRNNForecaster(Estimator):
    """Forecasts the next steps of series with an IndRNN.

    The network reads the last `context` steps, standardised by their own mean and deviation, and predicts the
    difference of the next `horizon` steps from the seasonal-naive forecast (the last value, if there is no season).

    Args:
        horizon: number of steps to forecast.
        context: past steps read; None for the largest of three periods, two horizons and 8, fewer in short series.
        period: seasonal period; None to detect it by autocorrelation, 1 for no season.
        coverage: coverage of the prediction intervals.
        effort: "quick", "default" or "best".
        hidden_size: neurons per layer.
        layers: number of recurrent layers.
        steps: number of training steps.
        lr: peak learning rate.
        members: number of networks whose forecasts are averaged; 3 by default, 1 with "quick", 10 with "best".
        core: "indrnn", "lstm" or "gru".
        device: "auto", "cpu", "cuda", ...
        threads: number of CPU threads.
        verbose: 1 to print the errors on held-out steps, compared with those of the naive forecasts.
        random_state: random seed, for reproducible results.

    Attributes:
        errors_: mean absolute errors on the held-out last windows (`horizon` of them, more for a long series):
            `indrnn`, `naive`, `seasonal_naive`.
        period_: the seasonal period.

    Example:
        forecast = indrnn.IndRNNForecaster(12).fit(y).predict()  # (12, channels)
    """

    _sort = "regressor"

    def __init__(
        self,
        horizon: int = 1,
        *,
        context: int | None = None,
        period: int | None = None,
        coverage: float = 0.9,
        effort: Effort = "default",
        hidden_size: int | None = None,
        layers: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
        members: int | None = None,
        core: Core = "indrnn",
        device: str = "auto",
        threads: int | None = None,
        verbose: int = 1,
        random_state: Any = None,
    ) -> None:
        self.horizon, self.context, self.period, self.coverage = horizon, context, period, coverage
        self.effort, self.hidden_size, self.layers, self.steps, self.lr = effort, hidden_size, layers, steps, lr
        self.members, self.core, self.device, self.threads = members, core, device, threads
        self.verbose, self.random_state = verbose, random_state

    per_step = False

    def fit(  # type: ignore[override]
        self,
        y: Any,
        *unused: Any,
        out: str | Path | None = None,
        resume: bool = False,
        overwrite: bool = False,
        config: dict[str, Any] | None = None,
        resume_command: str | None = None,
    ) -> Self:
        """Fit the forecaster to one or many series.

        It is trained twice: on all steps, for the forecasts; and without the last ones, for the errors and intervals.

        Args:
            y: (time,), (channels, time), (n, channels, time), or a list of (channels, time) of any lengths.
            *unused: ignored.
            out: a folder for the run and the forecaster; the training without the last steps goes into its subfolder
                `held-back`. None to write nothing.
            resume: resume the run in `out`.
            overwrite: delete an earlier run in `out`.
            config: further entries of the run's config.json.
            resume_command: the command to resume with, shown to a user who stops a run in `out`.
        """
        everything = self.fitting(y)
        if resume and self.random_state is None:
            everything = everything.going_on(out)
        series = _series(y)
        shortest = min(one.shape[1] for one in series)
        windows = shortest - self.context_ - self.horizon + 1
        held = max(self.horizon, min(max(20, 4 * self.horizon), windows // 6))
        # Held back: the windows whose targets reach into the last `held + horizon − 1` steps
        cut = held + self.horizon - 1
        earlier = self._windows([one[:, : max(0, one.shape[1] - cut)] for one in series], everything.seed)
        how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "resume_command": resume_command}
        how |= {"config": config, "quiet": not getattr(self, "verbose", 0)}
        self._last = [one[:, -self.context_ :] for one in series]
        self._known = {checksum(one) for one in series}
        self.n_features_in_ = len(series[0])
        models, results = everything.train(out=out, **how)
        self.take(everything, models, results)
        if not results[-1].finished:
            return self
        self.take(earlier, *earlier.train(out=None if out is None else Path(out) / "held-back", **how))
        if not self.results_[-1].finished:
            return self
        self._measure(series, cut)
        self.take(everything, models, results)
        if getattr(self, "verbose", 0):
            print(self.report())
        if out is not None:
            self.save(out)
        return self

    def fitting(self, y: Any) -> Fitting:  # type: ignore[override]
        """Return what `fit` would train on all steps: windows and plan; sets `period_`, `context_` and `floor_`."""
        check_count("horizon", self.horizon)
        if not 0 < self.coverage < 1:
            raise ValueError(f"coverage must lie between 0 and 1, got {self.coverage!r}")
        check_effort(self.effort)
        series = _series(y)
        self.floor_ = _floor(series)
        self.period_ = find_period(series) if self.period is None else self.period
        check_count("period", self.period_)
        self.context_ = max(2 * self.horizon, 3 * self.period_, 8) if self.context is None else self.context
        shortest, longest = (each(one.shape[1] for one in series) for each in (min, max))
        if self.context is None:  # what little there is
            self.context_ = min(self.context_, max(self.period_, (shortest - self.horizon) // 2, 1))
        check_count("context", self.context_, least=self.period_)
        needed = self.context_ + 3 * self.horizon - 1
        for least, found, of in ((self.context_, shortest, "in each series, "), (needed, longest, "")):
            if found < least:
                raise ValueError(
                    f"y must have at least {least} steps {of}for a horizon of {self.horizon} and a context of "
                    f"{self.context_}, got {found}; a smaller horizon, period or context needs fewer"
                )
        names = y.channels if isinstance(y, Collection) else None
        return self._windows(series, seed_of(self.random_state), names)

    def _windows(self, series: list[Array], seed: int, names: tuple[str, ...] | None = None) -> Fitting:
        """Cut series into windows, each with the steps that follow as its target."""
        inputs, targets = [], []
        for one in series:
            for start in range(one.shape[1] - self.context_ - self.horizon + 1):
                past = one[:, start : start + self.context_]
                future = one[:, start + self.context_ : start + self.context_ + self.horizon]
                mean, scale = _scale(past, self.floor_)
                inputs.append((past - mean) / scale)
                targets.append(((future - self._base(past)) / scale).T.ravel())
        data = Collection.from_arrays(inputs, np.stack(targets), channels=names)
        assert data.y is not None
        channels = len(series[0])
        # Already on their own scale, so nothing is to be taken off
        preparation = Preparation((0.0,) * channels, (1.0,) * channels)
        target = Target.of_numbers(data.y, False)
        planned = self._plan(len(data), channels)
        return Fitting(data, preparation, target, planned, seed, device=self.device, threads=self.threads)

    def _plan(self, windows: int, channels: int) -> Plan:
        shape = Shape(windows, channels, float(self.context_), self.context_, causal=True)
        return plan(
            shape,
            self.effort,
            self.core,
            hidden_size=self.hidden_size,
            layers=self.layers,
            steps=(200 if self.effort == "quick" else 400) if self.steps is None else self.steps,
            lr=self.lr,
            front=False,
            pool="last",
            augment=windows < 1000,
            validation=0.0,
            dropout=0.1,
            members={"quick": 1, "default": 3, "best": 10}[self.effort] if self.members is None else self.members,
        )

    def _base(self, past: Array) -> Array:
        """The naive forecast that the network corrects: (channels, horizon)."""
        if self.period_ > 1:
            return seasonal_naive(past.T, self.horizon, self.period_).T
        return naive(past.T, self.horizon).T

    def _forecast(self, pasts: list[Array]) -> Array:
        """Forecasts from these past steps, (n, horizon, channels)."""
        pieces = [self._answers_to(pasts[at : at + _AT_ONCE]) for at in range(0, len(pasts), _AT_ONCE)]
        return np.concatenate(pieces)

    def _answers_to(self, pasts: list[Array]) -> Array:
        scales = [_scale(past, self.floor_) for past in pasts]
        inputs = torch.from_numpy(
            np.stack([((past - mean) / scale).T for past, (mean, scale) in zip(pasts, scales, strict=True)], 1)
        ).float()
        answers = self.target_.numbers(self.mean_answer([answer(model, inputs, None) for model in self.models_]))
        answers = answers.reshape(len(pasts), self.horizon, -1)
        pairs = zip(pasts, scales, answers, strict=True)
        return np.stack([self._base(past).T + found * scale.T for past, (_, scale), found in pairs])

    def _measure(self, series: list[Array], cut: int) -> None:
        """Measure errors and residuals on the held-out windows."""
        pasts, futures = [], []
        for one in series:
            time = one.shape[1]
            for start in range(max(self.context_, time - cut), time - self.horizon + 1):
                pasts.append(one[:, start - self.context_ : start])
                futures.append(one[:, start : start + self.horizon].T)
        actual = np.stack(futures)
        found = self._forecast(pasts)
        self.errors_ = self._errors(pasts, actual, found)
        residuals = _residuals(pasts, actual, found, self.floor_)
        some = np.linspace(0, len(residuals) - 1, min(len(residuals), KEPT)).round().astype(np.int64)
        self._held_back = residuals[some]
        self.half_width_ = half_widths(self._held_back, self.coverage)

    def _errors(self, pasts: list[Array], actual: Array, found: Array) -> dict[str, float]:
        """Mean absolute errors of forecasts (n, horizon, channels), and of the naive forecasts."""
        plain = np.stack([naive(past.T, self.horizon) for past in pasts])
        season = np.stack([seasonal_naive(past.T, self.horizon, self.period_) for past in pasts])
        forecasts = {"indrnn": found, "naive": plain, "seasonal_naive": season}
        return {name: float(np.abs(actual - each).mean()) for name, each in forecasts.items()}

    def measure(self, y: Any) -> dict[str, float]:
        """Measure errors over the last `horizon` steps of each series, forecast from the steps before them.

        Args:
            y: as for `fit`, of at least `context_ + horizon` steps.

        Returns:
            Mean absolute errors `indrnn`, `naive` and `seasonal_naive`, and `covered`, the fraction of the values
            that lie within their intervals.
        """
        pasts, _ = self._pasts(y, self.horizon)
        actual = np.stack([one[:, -self.horizon :].T for one in _series(y)])
        found = self._forecast(pasts)
        low, high = self._ends(pasts, found, [one[:, : -self.horizon] for one in _series(y)])
        covered = float(((low <= actual) & (actual <= high)).mean())
        return {**self._errors(pasts, actual, found), "covered": covered}

    def is_known(self, series: Array) -> bool:
        """Whether a series (channels, time) is exactly one of those given to `fit`."""
        return end_of(self._known, np.asarray(series, dtype=np.float64)) == int(series.shape[1])

    def report(self) -> str:
        """Summarise the errors on held-out steps in one line."""
        e = self.errors_
        return (
            f"mean absolute error on held-back steps: IndRNN {e['indrnn']:.4g}, naive {e['naive']:.4g}, seasonal naive "
            f"{e['seasonal_naive']:.4g} (period {self.period_})"
        )

    def predict(self, y: Any = None) -> Any:
        """Forecast the next `horizon` steps.

        Args:
            y: the series so far, as for `fit`, of at least `context_` steps; None for those of `fit`.

        Returns:
            (horizon, channels); (n, horizon, channels) for many series.
        """
        pasts, many = self._pasts(y)
        found = self._forecast(pasts)
        return found if many else found[0]

    def _pasts(self, y: Any, ahead: int = 0) -> tuple[list[Array], bool]:
        """Last `context_` steps of each series before its final `ahead` steps, and whether there are many series."""
        self._check_fitted()
        if self.target_.outputs != self.horizon * self.n_features_in_:
            raise ValueError(
                f"horizon was {self.target_.outputs // self.n_features_in_} in fit and is {self.horizon} now: call fit "
                "again for another one"
            )
        if y is None:
            return self._last, len(self._last) > 1
        pasts, needed = _series(y), self.context_ + ahead
        for i, one in enumerate(pasts):
            if len(one) != self.n_features_in_:
                raise ValueError(f"y must have {self.n_features_in_} channels, got {len(one)} in series {i}")
            if one.shape[1] < needed:
                raise ValueError(f"y must have at least {needed} steps, got {one.shape[1]} in series {i}")
        return [one[:, one.shape[1] - needed : one.shape[1] - ahead] for one in pasts], len(pasts) > 1

    def predict_interval(self, y: Any = None) -> tuple[Any, Any]:
        """Return lower and upper ends of the prediction intervals, each in the shape of `predict`.

        Their widths are those of residuals on held-out steps, at each step ahead, in deviations of the `context_` steps
        that the forecast is made from: the more a series varies, the wider they are. If a series continues one of
        `fit`, residuals of the forecasts that could have been made since then count too.
        """
        pasts, many = self._pasts(y)
        ends = self._ends(pasts, self._forecast(pasts), [] if y is None else _series(y))
        return ends if many else (ends[0][0], ends[1][0])

    def _ends(self, pasts: list[Array], middle: Array, known: list[Array]) -> tuple[Array, Array]:
        """Interval ends around forecasts (n, horizon, channels); `known` holds the series so far, or is empty."""
        widths = [half_widths(self._held_back, self.coverage)] * len(pasts)
        for i, one in enumerate(known):
            since = self._since_fit(one)
            if len(since):
                widths[i] = half_widths(np.concatenate([self._held_back, since]), self.coverage)
        half = np.stack([width * _scale(past, self.floor_)[1].T for width, past in zip(widths, pasts, strict=True)])
        return middle - half, middle + half

    def _since_fit(self, series: Array) -> Array:
        """Residuals of forecasts from the steps after those of `fit`; NaN where the value is not known yet."""
        end, time = end_of(self._known, series), series.shape[1]
        pasts, futures = [], []
        for start in range(time if end is None else max(end, time - RECENT), time):
            future = np.full((self.horizon, len(series)), np.nan)
            known = series[:, start : start + self.horizon].T
            future[: len(known)] = known
            pasts.append(series[:, start - self.context_ : start])
            futures.append(future)
        if not pasts:
            return np.empty((0, self.horizon, len(series)))
        return _residuals(pasts, np.stack(futures), self._forecast(pasts), self.floor_)

    def score(self, y: Any, horizon: Any = None, sample_weight: Any = None) -> float:
        """Negative mean absolute error over the last `horizon` steps of y, forecast from the steps before them."""
        return -self.measure(y)["indrnn"]

    def extra_state(self) -> dict[str, Any]:
        """Return the forecaster's additional state for its file."""
        return {
            "period": self.period_,
            "context": self.context_,
            "errors": self.errors_,
            "held_back": self._held_back.tolist(),
            "known": sorted(self._known),
            "floor": self.floor_.tolist(),
            "last": [one.tolist() for one in self._last],
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the additional state from a file."""
        self.period_, self.context_, self.errors_ = state["period"], state["context"], state["errors"]
        self._held_back = np.array(state["held_back"])
        self._known = {(length, content) for length, content in state["known"]}
        self.floor_ = np.array(state["floor"])
        self.half_width_ = half_widths(self._held_back, self.coverage)
        self._last = [np.array(one) for one in state["last"]]

    def stream(self) -> Any:
        """Not supported: give `predict` the series until now."""
        raise ValueError("a forecaster has no stream; call predict(y) with the series until now")

    def explain(self, x: Any, target: Any = None) -> Any:
        """Not supported yet."""
        raise ValueError("explain is for IndRNNClassifier and IndRNNRegressor")


def _floor(series: list[Array]) -> Array:
    """Lower bound for the deviation of each channel, (channels, 1): a hundredth of its median over series.

    Constant stretches have a deviation of zero; their forecasts are scaled by this bound. For a channel that never
    changes, the bound is a billionth of its largest absolute value.
    """
    found = []
    for channel in range(len(series[0])):
        largest = max(float(np.abs(one[channel]).max()) for one in series)
        each = [float(one[channel].std()) for one in series]
        known = [deviation for deviation in each if deviation > 8 * np.finfo(np.float64).eps * largest]  # no rounding
        found.append(np.median(known) / 100 if known else 1e-9 * largest or 1e-9)
    return np.array(found)[:, None]


def _scale(past: Array, floor: Array) -> tuple[Array, Array]:
    """Mean of each channel, (channels, 1), and its deviation, at least `floor`."""
    return past.mean(1, keepdims=True), np.maximum(past.std(1, keepdims=True), floor)


def _residuals(pasts: list[Array], actual: Array, found: Array, floor: Array) -> Array:
    """Absolute residuals of forecasts (n, horizon, channels), in deviations of the steps they are made from."""
    return np.abs(actual - found) / np.stack([_scale(past, floor)[1].T for past in pasts])  # type: ignore[no-any-return]


def _series(y: Any) -> list[Array]:
    """Convert y to a list of series (channels, time) in float64; raise for missing or infinite values."""
    if isinstance(y, Collection):
        given: Any = y.x
    elif isinstance(y, (list, tuple)) and len(y) and np.ndim(y[0]) >= 1:
        given = list(y)
    else:
        array = as_array(y)
        if array.ndim not in (1, 2, 3):
            raise ValueError(f"y must be (time,), (channels, time), (n, channels, time) or a list, got {array.shape}")
        given = [array[None]] if array.ndim == 1 else [array] if array.ndim == 2 else list(array)
    if not len(given):
        raise ValueError("y must hold at least one series, got none")
    found: list[Array] = []
    for i, one in enumerate(given):
        values = as_array(one).astype(np.float64)
        values = values[None] if values.ndim == 1 else values
        if values.ndim != 2 or len(values) != len(found[0] if found else values):
            raise ValueError(f"y must have the same channels in each series, as (channels, time), got {values.shape}")
        if not np.isfinite(values).all():
            channel, step = (int(at) for at in np.argwhere(~np.isfinite(values))[0])
            of, named = f"series {i}", str(channel)
            if isinstance(y, Collection):
                of, named = of + (f" ({y.names[i]})" if y.names else ""), y.channels[channel]
            raise ValueError(
                f"y must be finite to be forecast, got {values[channel, step]} in {of}, channel {named}, step {step}; "
                "fill it first"
            )
        if not values.size:
            raise ValueError(f"y must have at least one step, got the shape {values.shape} in series {i}")
        found.append(values)
    return found


__all__ = ["IndRNNForecaster"]
