"""A process that trains until it is killed; `python kill_child.py DIRECTORY`."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sources import MarkovTokens

from steelyard.config import load
from steelyard.train import TrainConfig
from steelyard.train.trainer import train

if __name__ == "__main__":
    directory = Path(sys.argv[1])

    def on_step(progress) -> None:
        print(progress.step, flush=True)
        time.sleep(0.004)

    train(
        load(directory / "wanted.json", TrainConfig),
        MarkovTokens(),
        directory / "run",
        on_step=on_step,
    )
