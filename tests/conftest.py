"""Set-up of all tests."""

import os
from pathlib import Path

# Where Python is told to keep no bytecode, every child compiles torch anew, for ten seconds or more.
# Children of the tests keep it in the user's cache instead, away from the sources.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(cache / "steelyard" / "bytecode"))
