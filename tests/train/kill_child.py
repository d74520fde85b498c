"""A process that trains until it kills itself; `python kill_child.py DIRECTORY STEPS SECONDS`.

The kill comes so many seconds after the step, wherever the run then is.
"""

import itertools
import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sources import MarkovTokens

from steelyard.config import load
from steelyard.train import TrainConfig
from steelyard.train.trainer import train

if __name__ == "__main__":
    directory, steps, wait_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    counter = itertools.count(1)

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def on_step(progress) -> None:
        if next(counter) == steps:
            if wait_s:
                threading.Timer(wait_s, kill).start()
            else:
                kill()

    config = load(directory / "wanted.json", TrainConfig)
    train(config, MarkovTokens(), directory / "run", on_step=on_step)
