"""The `steelyard` command with a ladder of fixed, small runs, whatever the speed of the machine.

The loop chooses its ladder by probed step times. Here the probe reports one second per step, so
that every machine trains the same 120 steps of the four smallest models, on batches of two
sequences.
"""

from steelyard.weigh import ladder

ladder.BATCH_SIZE = 2  # before the modules that import it by name

from steelyard.cli.main import main  # noqa: E402
from steelyard.weigh import quickstart, training  # noqa: E402

training._EVAL_TOKENS = 16 * ladder.SEQUENCE_LENGTH
quickstart._SERVING_SHARE = 0.02
quickstart._PATIENCE_SHARE = 0.0
quickstart.probe_step_times = lambda shapes, *_: dict.fromkeys(shapes, 1.0)

if __name__ == "__main__":
    main()
