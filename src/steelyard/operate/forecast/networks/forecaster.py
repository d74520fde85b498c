"""The pretrained forecaster: train on a corpus, forecast series never seen, or tune to some."""

import tempfile
from functools import partial
from importlib import resources
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from steelyard.config import convert
from steelyard.errors import DataError
from steelyard.files import write_bytes
from steelyard.operate.forecast.bounds import forecast_all
from steelyard.operate.forecast.networks.config import EncoderConfig
from steelyard.operate.forecast.networks.masked_encoder import MaskedEncoder
from steelyard.operate.forecast.networks.training import (
    network_quantiles,
    pretraining_budget,
    train_network,
)
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.result import EstimatorResult, OnStep

__all__ = ["MaskedEncoderForecaster"]

_SHIPPED = "masked-encoder.safetensors"


class MaskedEncoderForecaster:
    """Forecasts series it never saw with an encoder pretrained on others.

    Attributes:
        name: "MaskedEncoder".
        config: shape of the encoder.
        network: the encoder.

    Source: Woo et al. 2023 (arXiv 2310.05063).
    """

    def __init__(self, config: EncoderConfig | None = None, *, name: str = "MaskedEncoder") -> None:
        """Make a forecaster that has learned nothing yet.

        Args:
            config: shape; None for the default one.
            name: what tables and the ledger call it.
        """
        self.name = name
        self.config = config or EncoderConfig()
        self.network = MaskedEncoder(self.config).eval()

    def pretrain(
        self,
        series: SeriesSet,
        budget: EstimatorConfig,
        directory: Path,
        *,
        on_step: OnStep | None = None,
    ) -> EstimatorResult:
        """Train on a corpus; a killed call goes on where it was, to the same weights bit for bit.

        Args:
            series: the corpus.
            budget: steps, batch and rate.
            directory: folder of checkpoints.
            on_step: called after each step.

        Returns:
            What the training loop measured.

        Raises:
            TraceError: no series is long enough.
            ConfigError: the folder holds another run.
        """
        return train_network(self.network, series, budget, directory, on_step=on_step)

    def zero_shot(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast series that it was not trained on; the same as `predict`."""
        return self.predict(context, horizon)

    def finetune(self, series: SeriesSet, steps: int = 100, *, seed: int = 0) -> EstimatorResult:
        """Train on with a user's own series, at a rate of a fifth.

        Args:
            series: nothing of what is forecast later.
            steps: optimizer steps.
            seed: seed of the windows.

        Returns:
            What the training loop measured.

        Raises:
            TraceError: no series is long enough.
        """
        # A low rate: a few windows of one user shall bend what a corpus taught, not replace it.
        budget = pretraining_budget(steps, batch_size=64, learning_rate=4e-4, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            return self.pretrain(series, budget, Path(folder))

    def fit(self, series: SeriesSet) -> None:
        """Tune to series, as `finetune` does."""
        self.finetune(series)

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does.

        Steps beyond the horizon that it was trained for are said to be like the last one it was
        trained for.
        """
        forecast = partial(network_quantiles, self.network)
        return forecast_all(context, horizon, self.name, forecast)

    def save(self, path: Path) -> None:
        """Write weights and shape to one safetensors file."""
        shape = msgspec.json.encode(self.config).decode()
        # safetensors holds numbers and text alone, so reading a stranger's file runs nothing.
        tensors = {key: part.contiguous() for key, part in self.network.state_dict().items()}
        write_bytes(Path(path), save(tensors, metadata={"config": shape}))

    @classmethod
    def load(cls, path: Path, *, name: str = "MaskedEncoder") -> "MaskedEncoderForecaster":
        """Read what `save` wrote.

        Args:
            path: the file.
            name: what tables and the ledger call it.

        Returns:
            The forecaster.

        Raises:
            DataError: the file is missing, damaged or of something else.
        """
        try:
            with safe_open(str(path), "pt") as file:
                shape = (file.metadata() or {})["config"]
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            made = cls(
                convert(msgspec.json.decode(shape), EncoderConfig, where=str(path)), name=name
            )
            made.network.load_state_dict(tensors)
        # KeyError: a file of other tensors has no shape; RuntimeError: the shape is not of these.
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            first = str(error).splitlines()[0]
            raise DataError(f"{path} is no checkpoint of a masked encoder: {first}") from error
        return made

    @classmethod
    def shipped(cls) -> "MaskedEncoderForecaster":
        """Load the small checkpoint that comes with the package."""
        place = resources.files("steelyard.operate.forecast.networks") / _SHIPPED
        with resources.as_file(place) as path:
            return cls.load(path)
