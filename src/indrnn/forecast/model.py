"""`IndRNN`: the recurrent model of neuralforecast with a deep IndRNN as its encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neuralforecast.core import MODEL_FILENAME_DICT
from neuralforecast.losses.pytorch import HuberMQLoss, MQLoss
from neuralforecast.models import RNN

from ..layers import attach_constraint
from ..networks import NetworkConfig, Plain
from ..saving import from_json, to_json

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
"""Options of Lightning's trainer with which it writes nothing to the terminal and no folder of logs."""


class IndRNN(RNN):  # type: ignore[misc]
    """neuralforecast's recurrent model, with one of our networks in the place of its `torch.nn.RNN`.

    It is used as any model of neuralforecast's: panels, known and past covariates, missing steps, losses, windows of
    cross-validation and saving are neuralforecast's, training is Lightning's. The recurrent weights stay within the
    network's bound, |u| <= γ^(1/T), where T is `input_size`.

    Args:
        h: horizon, the number of steps that are forecast.
        input_size: steps that the network reads before them; -1 for three horizons.
        network: `indrnn.Plain`, `Residual` or `Dense`, with depth, width, norm, γ and dropout; None for two layers of
            64 without norm and with dropout 0.1.
        recurrent: forecast a step at a time, each from the one before it; False for all steps at once.
        **options: the others of `neuralforecast.models.RNN`, but `encoder_*`, and of Lightning's trainer, which here is
            silent unless they say otherwise.

    Example:
        model = IndRNN(h=12, input_size=24, network=indrnn.Residual(None, 64, 2, norm="layer"), loss=MQLoss(level=[80]))
        NeuralForecast([model], freq="MS").cross_validation(frame, n_windows=3, step_size=12)
    """

    hist_encoder: Any

    def __init__(
        self,
        h: int,
        input_size: int = -1,
        network: NetworkConfig | Mapping[str, Any] | None = None,
        recurrent: bool = False,
        **options: Any,
    ) -> None:
        loaded = isinstance(network, Mapping)
        config = from_json(network) if loaded else network or Plain(hidden_size=64, layers=2, norm=None, dropout=0.1)
        if not isinstance(config, NetworkConfig):
            raise TypeError(f"network must be indrnn.Plain, Residual or Dense, got {type(config).__name__}")
        if recurrent and config.bidirectional:
            raise ValueError("network.bidirectional must be False with recurrent, whose future is not known")
        if recurrent and isinstance(options.get("loss"), (MQLoss, HuberMQLoss)):
            why = "neuralforecast gives all quantiles the same value"
            got = type(options["loss"]).__name__
            raise ValueError(f"loss must be one of points or of a distribution with recurrent, where {why}, got {got}")
        encoder = sorted(name for name in options if name.startswith("encoder_"))
        if encoder and not loaded:
            raise TypeError(f"the encoder's options are those of network, such as layers or dropout, got {encoder[0]}")
        network = to_json(config)  # what neuralforecast saves
        width = config.sized(1, 1).build(device="meta").output_size
        options = {**QUIET, **options, "encoder_n_layers": 1, "encoder_hidden_size": width}
        super().__init__(h=h, input_size=input_size, recurrent=recurrent, **options)
        sized = config.sized(self.hist_encoder.input_size, self.input_size)
        self.hist_encoder = replace(sized, batch_first=True).build()

    def configure_optimizers(self) -> Any:
        """Make the optimizer, after whose steps the recurrent weights are brought back within their bound."""
        made = super().configure_optimizers()
        attach_constraint(made["optimizer"], self.hist_encoder)
        return made


MODEL_FILENAME_DICT["indrnn"] = IndRNN  # by which NeuralForecast.load knows it
