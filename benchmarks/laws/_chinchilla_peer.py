"""Fit points with pip `chinchilla` in the peer's own Python: one JSON object in, one out."""

import json
import sys
import tempfile
import time
from functools import partial

import numpy as np
from chinchilla import Chinchilla  # pyright: ignore[reportMissingImports]
from chinchilla._metrics import asymmetric_mae, log_huber  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Take the CPU time of `Chinchilla.fit` in one process, without the plot at its end."""
    task = json.load(sys.stdin)
    size = len(task["loss"])

    def summed_huber(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        """Undo the mean the peer takes, which would stop its optimizer at the start."""
        return size * log_huber(y_true, y_pred, delta=task["delta"])

    losses = {
        "default": asymmetric_mae,
        "mean Huber": partial(log_huber, delta=task["delta"]),
        "summed Huber": summed_huber,
    }
    with tempfile.TemporaryDirectory() as folder:
        peer = Chinchilla(
            folder, param_grid=task["grid"], loss_fn=losses[task["objective"]], log_level=50
        )
        for parameters, tokens, loss in zip(
            task["parameters"], task["tokens"], task["loss"], strict=True
        ):
            peer.database.append(N=parameters, D=tokens, loss=loss)
        peer.visualizer.optim = lambda *args, **kwargs: None
        begin = time.process_time()
        peer.fit(parallel=False)
        seconds = time.process_time() - begin
    params = {name: float(getattr(peer, name)) for name in ("E", "A", "B", "alpha", "beta")}
    print("\n" + json.dumps({"seconds": seconds, "params": params}))


if __name__ == "__main__":
    main()
