"""Other people's tools in virtual environments of their own, so that their pins never meet ours."""

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from steelyard.errors import BackendError, ConfigError

__all__ = ["install", "known", "python"]

_ROOT = Path(__file__).parent.parent
_LIST = Path(__file__).parent / "peers.toml"


def known() -> dict[str, list[str]]:
    """List peers by name with their pinned packages."""
    return {name: row["packages"] for name, row in _rows().items()}


def _rows() -> dict[str, dict[str, list[str]]]:
    """Read the list: by name the packages to install, and those to remove again."""
    with _LIST.open("rb") as stream:
        return tomllib.load(stream)


def python(name: str) -> Path:
    """Return the interpreter of an installed peer.

    Raises:
        BackendError: the peer is not installed.
    """
    path = _ROOT / ".peers" / name / "bin" / "python"
    if not path.exists():
        raise BackendError(
            f"peer {name!r} is not installed", hint=f"python -m benchmarks peers install {name}"
        )
    return path


def install(name: str) -> Path:
    """Make `.peers/NAME` and install the peer's pinned packages there; doing it again repairs it.

    Args:
        name: a table of `peers.toml`.

    Returns:
        The interpreter of the peer.

    Raises:
        ConfigError: no peer has this name.
        BackendError: the installation failed; what pip said stands above.
    """
    peers = known()
    if name not in peers:
        raise ConfigError(f"no peer named {name!r}", hint=f"peers: {', '.join(peers)}")
    venv.create(_ROOT / ".peers" / name, with_pip=True)
    interpreter = python(name)
    command = [
        str(interpreter),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        *peers[name],
    ]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise BackendError(
            f"could not install peer {name!r}",
            hint="read pip's message above; the network may be missing",
        )
    extra = _rows()[name].get("remove", [])
    if extra:
        subprocess.run(
            [str(interpreter), "-m", "pip", "uninstall", "--yes", *extra],
            stdout=sys.stderr,
            check=True,
        )
    return interpreter
