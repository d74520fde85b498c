"""Serve a model over HTTP: a gateway process in front, an engine process behind it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from steelyard.errors import BackendError, ConfigError, require

__all__ = ["ServeOptions", "serve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """How to serve a model.

    Attributes:
        host: address to listen on; the default is reachable from this machine only.
        port: TCP port, 0 for a free one.
        name: of the model, as clients ask for it; the folder's name when empty.
        pool_bytes: bytes of the key/value pool.
        max_model_len: longest prompt and output together, 0 for what model and pool allow.
        token_budget: most tokens per step.
        policy: order in which requests are served.
        asynchronous: plan one step ahead.
        api_key_env: environment variable with the keys clients may send, apart by commas; none
            asked for when empty.
        api_key_file: file with one `KEY [NAME]` per line, `#` begins a comment; none asked for when
            None.
        requests_per_min: most requests a key may send in a minute, 0 for no limit.
        tokens_per_min: most prompt and output tokens of a key in a minute, 0 for no limit.
        max_requests: most requests in flight; further ones are answered 429.
        queue_tokens: most predicted tokens in flight; further requests are answered 429. 0 takes
            four times the pool.
        body_limit_bytes: longest request body.
        drain_timeout_s: longest wait for requests in flight after SIGTERM.
        stall_timeout_s: longest silence of an engine with work before it is replaced; above its
            longest step.
        threads: of the engine's tensor library, 0 for its own choice.
        engine_cores: processor cores of the engine, all when empty.
        gateway_cores: processor cores of the gateway, all when empty.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    name: str = ""
    pool_bytes: int = 256 * 2**20
    max_model_len: int = 0
    token_budget: int = 512
    policy: Literal["fcfs", "priority", "vtc", "dlpm", "sjf"] = "fcfs"
    asynchronous: bool = False
    api_key_env: str = ""
    api_key_file: Path | None = None
    requests_per_min: float = 0.0
    tokens_per_min: float = 0.0
    max_requests: int = 256
    queue_tokens: int = 0
    body_limit_bytes: int = 4 * 2**20
    drain_timeout_s: float = 30.0
    stall_timeout_s: float = 600.0
    threads: int = 0
    engine_cores: tuple[int, ...] = ()
    gateway_cores: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            ConfigError: names the option, the value and the range.
        """
        require(
            self,
            port=(0 <= self.port < 65536, "in [0, 65535]"),
            pool_bytes=(self.pool_bytes >= 1, "at least 1"),
            max_model_len=(self.max_model_len >= 0, "at least 0"),
            token_budget=(self.token_budget >= 1, "at least 1"),
            requests_per_min=(self.requests_per_min >= 0, "at least 0"),
            tokens_per_min=(self.tokens_per_min >= 0, "at least 0"),
            max_requests=(self.max_requests >= 1, "at least 1"),
            queue_tokens=(self.queue_tokens >= 0, "at least 0"),
            body_limit_bytes=(self.body_limit_bytes >= 1, "at least 1"),
            drain_timeout_s=(self.drain_timeout_s >= 0, "at least 0"),
            stall_timeout_s=(self.stall_timeout_s > 0, "above 0"),
            threads=(self.threads >= 0, "at least 0"),
        )


def serve(model: Path | str, options: ServeOptions | None = None) -> None:
    """Serve a model until SIGTERM or SIGINT; requests in flight are then finished.

    The calling process becomes the gateway; the engine runs in a process of its own and is started
    again when it dies.

    Args:
        model: folder with `config.json`, safetensors and, for text, `tokenizer.json`.
        options: address, limits, keys.

    Raises:
        ConfigError: an option or the model's folder is wrong.
        BackendError: the server's packages are missing, or the engine cannot be made.
    """
    options = options or ServeOptions()
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} is not a model folder: it has no config.json",
            hint="give the folder a model was saved in",
        )
    try:
        from steelyard.serve.front.gateway.process import run_gateway
    except ImportError as error:
        raise BackendError(
            f"serving over HTTP needs {error.name}", hint="pip install 'steelyard[serve]'"
        ) from error
    run_gateway(folder.resolve(), options)
