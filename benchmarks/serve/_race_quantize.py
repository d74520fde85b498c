"""Writes GGUF files of a race's model with llama.cpp.

Usage: python _race_quantize.py FOLDER TYPE, in the environment of the peer `llama-cpp`.
"""

import json
import pathlib
import sys

from _gguf_program import quantize, write

folder, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
if not (folder / "F32.gguf").exists():
    write(folder, json.loads((folder / "model.json").read_text()))
if kind != "F32":
    quantize(folder, kind, keeps_tables=False)
