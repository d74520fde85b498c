"""Serve a model over HTTP: a gateway process in front, an engine process behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from steelyard.errors import BackendError, ConfigError, require
from steelyard.serve.options import EngineOptions

__all__ = ["ServeOptions", "serve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """How to serve a model.

    Args:
        engine: Kind of engine.
        host: Address to listen on; the default is reachable from this machine only.
        port: TCP port, 0 for a free one.
        name: Name of the model, as clients ask for it; the folder's name when left out.
        api_key_env: Environment variable with the keys clients may send, separated by commas; no
            key is needed when left out.
        api_key_file: File with one `KEY [NAME]` per line, `#` begins a comment; no key is needed
            when left out.
        requests_per_min: Most requests a key may send in a minute, 0 for no limit.
        tokens_per_min: Most prompt and output tokens of a key in a minute, 0 for no limit.
        max_requests: Most requests in flight; further ones are answered 429.
        queue_tokens: Most predicted tokens in flight; further requests are answered 429. 0 takes
            four times the pool.
        body_limit_bytes: Longest request body.
        drain_timeout_s: Longest wait for requests in flight when the server is told to end.
        stall_timeout_s: Longest silence of an engine with work before it is replaced; above its
            longest step.
        gateway_cores: Processor cores of the gateway, all when left out.
    """

    engine: EngineOptions = field(default_factory=EngineOptions)
    host: str = "127.0.0.1"
    port: int = 8000
    name: str = ""
    api_key_env: str = ""
    api_key_file: Path | None = None
    requests_per_min: float = 0.0
    tokens_per_min: float = 0.0
    max_requests: int = 256
    queue_tokens: int = 0
    body_limit_bytes: int = 4 * 2**20
    drain_timeout_s: float = 30.0
    stall_timeout_s: float = 600.0
    gateway_cores: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            ConfigError: names the option, the value and the range.
        """
        require(
            self,
            port=(0 <= self.port < 65536, "in [0, 65535]"),
            requests_per_min=(self.requests_per_min >= 0, "at least 0"),
            tokens_per_min=(self.tokens_per_min >= 0, "at least 0"),
            max_requests=(self.max_requests >= 1, "at least 1"),
            queue_tokens=(self.queue_tokens >= 0, "at least 0"),
            body_limit_bytes=(self.body_limit_bytes >= 1, "at least 1"),
            drain_timeout_s=(self.drain_timeout_s >= 0, "at least 0"),
            stall_timeout_s=(self.stall_timeout_s > 0, "above 0"),
        )


def serve(model: Path | str, options: ServeOptions | None = None) -> None:
    """Serve a model until SIGTERM or SIGINT; requests in flight are then finished.

    The calling process becomes the gateway; the engine runs in a process of its own and is started
    again when it dies.

    Args:
        model: folder with `config.json`, safetensors and, for text, `tokenizer.json`.
        options: address, limits, keys and engine.

    Raises:
        ConfigError: an option or the model's folder is wrong.
        BackendError: the server's packages are missing, or the engine cannot be made.
    """
    options = options or ServeOptions()
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} is not a model folder: it has no config.json",
            hint="name the folder a model was saved in",
        )
    try:
        from steelyard.serve.front.gateway.process import run_gateway
    except ImportError as error:
        raise BackendError(
            f"serving over HTTP needs {error.name}", hint="pip install 'steelyard[serve]'"
        ) from error
    run_gateway(folder.resolve(), options)
