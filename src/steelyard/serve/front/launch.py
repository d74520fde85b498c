"""Serve a model over HTTP: a gateway process in front, an engine process behind it."""

from pathlib import Path

from steelyard.errors import BackendError, ConfigError
from steelyard.serve.front.engine.spawn import SpawnedEngine
from steelyard.serve.options import ServeOptions

__all__ = ["ServeOptions", "serve"]


def serve(
    model: Path | str, options: ServeOptions | None = None, *, names: tuple[str, ...] = ()
) -> None:
    """Serve a model until SIGTERM or SIGINT; requests in flight are then finished.

    The calling process becomes the gateway; the engine runs in a process of its own and is started
    again when it dies.

    Args:
        model: folder with `config.json`, safetensors and, for text, `tokenizer.json`; or a GGUF
            file.
        options: address, limits, keys and engine.
        names: what clients may call the model, its own name first; the folder's or file's when
            empty. `options.name` stands for all of them.

    Raises:
        ConfigError: an option or the model's folder is wrong.
        BackendError: the server's packages are missing, or the engine cannot be made.
    """
    options = options or ServeOptions()
    folder = Path(model)
    _refuse_other(folder)
    own = folder.stem if folder.is_file() else folder.resolve().name
    folder = folder.resolve()
    # First of all: importing PyTorch there takes longer than all that follows here.
    spawned = SpawnedEngine()
    try:
        try:
            from steelyard.serve.front.gateway.process import run_gateway
        except ImportError as error:
            raise BackendError(
                f"serving over HTTP needs {error.name}", hint="pip install 'steelyard[serve]'"
            ) from error
        names = (options.name,) if options.name else names or (own,)
        run_gateway(folder, options, names, spawned)
    finally:
        spawned.kill()


def _refuse_other(folder: Path) -> None:
    """Refuse what is neither a model's folder nor a GGUF file."""
    if (folder / "config.json").is_file():
        return
    # Imported late: it needs numpy, for which the engine's process would have to wait.
    from steelyard.nn.gguf.header import is_gguf

    if not is_gguf(folder):
        raise ConfigError(
            f"{folder} is not a model folder: it has no config.json",
            hint="name the folder a model was saved in, or a .gguf file",
        )
