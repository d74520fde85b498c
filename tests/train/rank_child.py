"""One worker of a run; `python rank_child.py DIRECTORY STOP_AT`, started as torchrun would."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sources import MarkovTokens

from steelyard.config import load
from steelyard.train import TrainConfig
from steelyard.train.launch import launched
from steelyard.train.trainer import train

if __name__ == "__main__":
    directory, stop_at = Path(sys.argv[1]), int(sys.argv[2])

    def on_step(progress) -> None:
        if progress.step == stop_at:
            sys.exit(3)

    config = load(directory / "wanted.json", TrainConfig)
    with launched(config.parallel) as reducer:
        train(
            config,
            MarkovTokens(),
            directory / "run",
            on_step=on_step,
            reducer=reducer,
        )
