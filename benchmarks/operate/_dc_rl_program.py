"""Steps the data center environment of dc-rl in its own interpreter, and prints steps per second.

Words: steps to take. Its weather and load change with every step, as its own driver does it.
"""

import json
import sys
import time
import warnings


def main() -> None:
    """Make the environment, warm it up, step it, and print one line of JSON."""
    warnings.filterwarnings("ignore")
    import numpy
    from utils.make_envs_pyenv import make_dc_pyeplus_env  # pyright: ignore[reportMissingImports]

    steps = int(sys.argv[1])
    environment, _ = make_dc_pyeplus_env(
        1, location="az", dc_config_file="dc_config.json", datacenter_capacity_mw=1
    )
    rng = numpy.random.default_rng(0)
    loads, temperatures = rng.uniform(0.2, 0.9, steps), rng.uniform(0, 40, steps)
    environment.set_ambient_temp(20.0, 14.0)
    environment.reset()
    start = 0.0
    for step in range(-5, steps):
        if step == 0:
            start = time.perf_counter()
        environment.set_shifted_wklds(float(loads[step]))
        environment.set_ambient_temp(float(temperatures[step]), float(temperatures[step]) - 4)
        environment.step(step % 3)
    seconds = time.perf_counter() - start
    print(json.dumps({"steps_per_s": steps / seconds}))


main()
