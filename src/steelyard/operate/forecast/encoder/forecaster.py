"""The pretrained forecaster: train on a corpus, forecast series never seen, or tune to some."""

import tempfile
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from steelyard.config import convert
from steelyard.errors import DataError
from steelyard.files import atomic_path
from steelyard.operate.forecast.bounds import forecast_all
from steelyard.operate.forecast.encoder.batches import WindowBatches, window_loss
from steelyard.operate.forecast.encoder.config import EncoderConfig
from steelyard.operate.forecast.encoder.network import MaskedEncoder
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet
from steelyard.train.estimator import Estimator
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.result import EstimatorResult, OnStep

__all__ = ["MaskedEncoderForecaster", "pretraining_budget"]

_BATCH = 256
_SHIPPED = "masked-encoder.safetensors"


def pretraining_budget(
    steps: int, *, batch_size: int = 128, learning_rate: float = 2e-3, seed: int = 0
) -> EstimatorConfig:
    """Return how a masked encoder is pretrained on the one training loop.

    Args:
        steps: optimizer steps.
        batch_size: windows a step.
        learning_rate: peak rate.
        seed: seed of the order of windows.

    Returns:
        AdamW with betas (.9, .98), decay .1 of matrices, a tenth of the steps of warm-up, then a
        cosine.

    Source: Woo et al. 2023 (arXiv 2310.05063), appendix B; rate and warm-up are scaled to runs
        that are a hundred times shorter.
    """
    return EstimatorConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        warmup_steps=min(max(steps // 10, 1), 500, steps),
        schedule="cosine",
        final_fraction=0.02,
        weight_decay=0.1,
        betas=(0.9, 0.98),
        clip=1.0,
        seed=seed,
        checkpoint_every=max(steps // 20, 50),
    )


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
        batches = WindowBatches(series, self.config, budget.batch_size, budget.seed)
        trainer = Estimator(self.network, window_loss, budget)
        result = trainer.fit(batches, Path(directory), on_step=on_step)
        self.network.eval()
        return result

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
        return forecast_all(context, horizon, self.name, self._quantiles)

    def _quantiles(
        self, rows: list[np.ndarray], horizon: int, seasons: np.ndarray
    ) -> list[np.ndarray]:
        """Return quantiles [K, horizon] of contexts in their own units."""
        longest = self.config.history_steps()
        steps = np.minimum(np.arange(horizon), self.config.horizon - 1)
        found: list[np.ndarray] = []
        for first in range(0, len(rows), _BATCH):
            part = [row[-longest:] for row in rows[first : first + _BATCH]]
            past = np.full((len(part), max(map(len, part))), np.nan)
            for place, row in enumerate(part):
                past[place, past.shape[1] - len(row) :] = row
            season = torch.from_numpy(seasons[first : first + _BATCH])
            found += list(
                self.network.quantiles(torch.from_numpy(past), season)[..., steps].numpy()
            )
        return found

    def save(self, path: Path) -> None:
        """Write weights and shape to one safetensors file."""
        import msgspec

        shape = msgspec.json.encode(self.config).decode()
        tensors = {key: part.contiguous() for key, part in self.network.state_dict().items()}
        with atomic_path(Path(path)) as temporary:
            save_file(tensors, temporary, metadata={"config": shape})

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
        import msgspec

        try:
            with safe_open(str(path), "pt") as file:
                shape = (file.metadata() or {})["config"]
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            made = cls(
                convert(msgspec.json.decode(shape), EncoderConfig, where=str(path)), name=name
            )
            made.network.load_state_dict(tensors)
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            first = str(error).splitlines()[0]
            raise DataError(f"{path} is no checkpoint of a masked encoder: {first}") from error
        return made

    @classmethod
    def shipped(cls) -> "MaskedEncoderForecaster":
        """Load the small checkpoint that comes with the package."""
        place = resources.files("steelyard.operate.forecast.encoder") / _SHIPPED
        with resources.as_file(place) as path:
            return cls.load(path)
