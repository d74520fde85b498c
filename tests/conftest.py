"""Set-up of all tests."""

import os
import sys
from pathlib import Path

# Where Python is told to keep no bytecode, each process of the tests compiles torch anew, for ten
# seconds or more. It is kept in the user's cache instead, away from the sources.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    sys.pycache_prefix = os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(cache / "steelyard" / "bytecode")
    )
    sys.dont_write_bytecode = False
