"""Other people's tools in virtual environments of their own, so that their pins never meet ours."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NotRequired, TypedDict

from steelyard.errors import BackendError, ConfigError

__all__ = ["install", "known", "python"]

_ROOT = Path(__file__).parent.parent
_LIST = Path(__file__).parent / "peers.toml"


class _Row(TypedDict):
    """A peer of the list."""

    packages: list[str]
    python: NotRequired[str]
    """Python version of its environment, as in 3.12; ours when left out."""
    remove: NotRequired[list[str]]
    """Packages that come with the pinned ones and are removed again."""
    checkout: NotRequired[str]
    """Repository that no registry has: `install` needs a folder with it."""


def known() -> dict[str, list[str]]:
    """List peers by name with their pinned packages."""
    return {name: row["packages"] for name, row in _rows().items()}


def _rows() -> dict[str, _Row]:
    """Read the list."""
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


def install(name: str, checkout: Path | None = None) -> Path:
    """Make `.peers/NAME` and install the peer's pinned packages there; doing it again repairs it.

    Args:
        name: a table of `peers.toml`.
        checkout: folder with the repository of a peer that no registry has; it is put on the path
            of the environment, and stays where it is.

    Returns:
        The interpreter of the peer.

    Raises:
        ConfigError: no peer has this name, or it needs a checkout and none is given.
        BackendError: this machine lacks the Python version of the peer, or the installation
            failed; what `venv` or pip said stands above.
    """
    peers = _rows()
    if name not in peers:
        raise ConfigError(f"no peer named {name!r}", hint=f"peers: {', '.join(peers)}")
    repository = peers[name].get("checkout", "")
    if bool(repository) != (checkout is not None) or (checkout and not checkout.is_dir()):
        said = f"needs a checkout of {repository}" if repository else "takes no checkout"
        raise ConfigError(
            f"peer {name!r} {said}, and was given {checkout}",
            hint=f"python -m benchmarks peers install {name}"
            + (" --from CHECKOUT" if repository else ""),
        )
    _make_environment(_ROOT / ".peers" / name, peers[name].get("python"))
    interpreter = python(name)
    command = [
        str(interpreter),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        *peers[name]["packages"],
    ]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise BackendError(
            f"could not install peer {name!r}",
            hint="read pip's message above; the network may be missing",
        )
    extra = peers[name].get("remove", [])
    if extra:
        subprocess.run(
            [str(interpreter), "-m", "pip", "uninstall", "--yes", *extra],
            stdout=sys.stderr,
            check=True,
        )
    if checkout:
        packages = next((_ROOT / ".peers" / name / "lib").glob("python*/site-packages"))
        (packages / "checkout.pth").write_text(f"{checkout.resolve()}\n")
    return interpreter


def _make_environment(folder: Path, version: str | None) -> None:
    """Make a virtual environment with pip, with our Python or with the given version of it."""
    base = sys.executable if version is None else _interpreter(version)
    command = [base, "-m", "venv", str(folder)]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise BackendError(
            f"{base} could not make the environment {folder}",
            hint="read its message above; Debian and Ubuntu need the package pythonX.Y-venv for it",
        )


def _interpreter(version: str) -> str:
    """Find a Python of this version: ours, or one that `pythonX.Y` on the path starts.

    Args:
        version: as in 3.12.

    Returns:
        Path of the interpreter.

    Raises:
        BackendError: none is there.
    """
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    command = shutil.which(f"python{version}")
    if command:
        done = subprocess.run(
            [command, "-c", "import sys; print(sys.executable)"],
            # pyenv's shims are on the path for every version it has, and start only a chosen one.
            env=os.environ | {"PYENV_VERSION": version},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.strip()
    raise BackendError(
        f"this peer needs Python {version}, and no python{version} on the path starts",
        hint=f"install it, as by `apt install python{version}-venv`, `pyenv install {version}` or "
        f"`uv python install {version}`, and try again",
    )
