"""Options of one engine and of its server, from the command line to the processes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from steelyard.errors import ConfigError, require

__all__ = ["EngineOptions", "ServeOptions", "WeightsName"]

PolicyName = Literal["fcfs", "priority", "vtc", "dlpm", "sjf"]
WeightsName = Literal["auto", "fp32", "bf16", "int8", "int4"]
CacheName = Literal["full", "window", "sinks", "h2o", "topk", "adaptive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """What kind of engine to make of a model.

    It is plain data and knows no tensors: `serve.build.make_engine` makes the engine.

    Args:
        pool_bytes: Memory for keys and values. 0 takes that of 32 sequences of 1,024 tokens (or of
            the longest, where that is less), at most half of what is free beside the weights, and
            256 MiB for a bounded cache.
        num_blocks: Blocks of 16 tokens for keys and values, in place of --pool; 0 takes as many as
            the pool holds.
        max_model_len: Longest prompt and output together; 0 takes what model and pool allow.
        token_budget: Most tokens per step.
        max_num_seqs: Most sequences that run at once, at most the token budget.
        whole_prompts: Whether prompts run undivided in steps of their own, before decoding: up to
            the token budget together, or a longer one alone.
        policy: Order in which requests are served.
        client_weights: Share of each client under "vtc", 1 for those not named.
        update_every: Steps between two updates of the order; 0 orders requests only when they are
            admitted or preempted.
        prefix_caching: Whether equal prefixes share blocks.
        preemption: What happens to the blocks of a request that has to yield: they are computed
            again, moved to the host tier, or the quicker of the two.
        host_tier_bytes: Size of the host tier; 0 takes that of the pool.
        swap_folder: Folder of the file that holds the host tier; it is in memory when left out.
        keep_turns: Whether the host tier keeps what a request that ended had computed, for one
            that begins with the same tokens.
        allocator: Whether blocks are handed out one by one, or in runs that move in one copy.
        group_blocks: Blocks a request first takes as one run with "block-group"; 0 chooses by the
            pool's size.
        kv_dtype: Number type of keys and values; "model" is float32 beside fp32 weights and
            bfloat16 beside narrower ones. "int8" has a scale per head and token.
        weights: Number type in which the layers are computed. "auto" takes the one that is forecast
            fastest within `max_loss`, from the rates that `steelyard calibrate` measured here;
            where it did not, what the folder stores: bf16 where it is and the processor multiplies
            it, else fp32. "int8" has a scale per output and rounds activations to bytes, token by
            token; "int4" has a scale per 32 weights.
        max_loss: Largest loss of quality that "auto" weights may cost, as a relative increase of
            perplexity over the weights as stored, such as .01; with 0 they are no narrower than
            what is stored.
        native: Run steps in C++ kernels, or never; left out, where they can be compiled and proved
            faster on processors of the kind.
        asynchronous: Plan each step while the one before runs; outputs are the same.
        speculate: What guesses tokens, so that a step checks several of a sequence; outputs are the
            same. "ngram" takes what followed the same tokens earlier in the prompt or the output;
            the folder of a small model of the same tokenizer lets that guess; "off" guesses
            nothing. Guesses are only checked as long as they pay by what was measured. "auto" is
            "ngram" where the engine can guess: with a full cache and without --asynchronous.
        cache: Which keys and values of a sequence are kept: all, or a bounded number chosen by a
            sliding window, attention sinks and a window, heavy hitters, the highest scores, or a
            trained controller.
        cache_tokens: Tokens kept of each sequence when the cache is bounded; 0 keeps 256.
        cache_controller: File of the trained controller for "adaptive".
        threads: Threads of the engine's tensor library, 0 for its own choice.
        cores: Processor cores of the engine's process, all when left out.
    """

    pool_bytes: int = 0
    num_blocks: int = 0
    max_model_len: int = 0
    token_budget: int = 512
    max_num_seqs: int = 64
    whole_prompts: bool = False
    policy: PolicyName = "fcfs"
    client_weights: dict[str, float] = field(default_factory=dict)
    update_every: int = 0
    prefix_caching: bool = True
    preemption: Literal["recompute", "swap", "auto"] = "recompute"
    host_tier_bytes: int = 0
    swap_folder: Path | None = None
    keep_turns: bool = False
    allocator: Literal["paged", "block-group"] = "paged"
    group_blocks: int = 0
    kv_dtype: Literal["model", "float32", "bfloat16", "int8"] = "model"
    weights: WeightsName = "auto"
    max_loss: float = 0.0
    native: bool | None = None
    asynchronous: bool = False
    speculate: str = "auto"
    cache: CacheName = "full"
    cache_tokens: int = 0
    cache_controller: Path | None = None
    threads: int = 0
    cores: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values out of range and options that need another.

        Raises:
            ConfigError: names the option, and its range or the option it needs.
        """
        require(
            self,
            pool_bytes=(self.pool_bytes >= 0, "at least 0"),
            num_blocks=(self.num_blocks >= 0, "at least 0"),
            max_model_len=(self.max_model_len >= 0, "at least 0"),
            token_budget=(self.token_budget >= 1, "at least 1"),
            max_num_seqs=(self.max_num_seqs >= 1, "at least 1"),
            client_weights=(all(0 < at < 1e9 for at in self.client_weights.values()), "above 0"),
            update_every=(self.update_every >= 0, "at least 0"),
            host_tier_bytes=(self.host_tier_bytes >= 0, "at least 0"),
            group_blocks=(self.group_blocks >= 0, "at least 0"),
            weights=(self.weights in get_args(WeightsName), ", ".join(get_args(WeightsName))),
            max_loss=(0 <= self.max_loss < 1, "in [0, 1)"),
            speculate=(bool(self.speculate), "auto, off, ngram or a model's folder"),
            cache=(self.cache in get_args(CacheName), ", ".join(get_args(CacheName))),
            cache_tokens=(self.cache_tokens >= 0, "at least 0"),
            threads=(self.threads >= 0, "at least 0"),
        )
        swaps, bounded = self.preemption != "recompute", self.cache != "full"
        adaptive = self.cache == "adaptive"
        guesses = self.speculate not in ("auto", "off")
        # An option that would silently do nothing is refused: its user believes that it works.
        needs = (
            ("--client-weights", bool(self.client_weights), self.policy == "vtc", "--policy vtc"),
            ("--host-tier", self.host_tier_bytes, swaps, "--preemption swap or auto"),
            ("--swap-folder", self.swap_folder, swaps, "--preemption swap or auto"),
            ("--keep-turns", self.keep_turns, swaps, "--preemption swap or auto"),
            (
                "--group-blocks",
                self.group_blocks,
                self.allocator == "block-group",
                "--allocator block-group",
            ),
            ("--cache-tokens", self.cache_tokens, bounded, "--cache other than full"),
            # A sequence of a bounded cache owns one slab of fixed size from its beginning to its
            # end, which can be neither split into blocks nor shared.
            ("--preemption", swaps, not bounded, "--cache full"),
            ("--num-blocks", self.num_blocks, not self.pool_bytes, "--pool left out"),
            ("--num-blocks", self.num_blocks, not bounded, "--cache full"),
            ("--whole-prompts", self.whole_prompts, not bounded, "--cache full"),
            ("--allocator block-group", self.allocator != "paged", not bounded, "--cache full"),
            ("--kv-dtype", self.kv_dtype != "model", not bounded, "--cache full"),
            ("--native", self.native, not bounded, "--cache full"),
            ("--weights", self.weights not in ("auto", "fp32"), not bounded, "--cache full"),
            ("--max-loss", self.max_loss, self.weights == "auto", "--weights auto"),
            ("--speculate", guesses, not bounded, "--cache full"),
            ("--speculate", guesses, not self.asynchronous, "--no-asynchronous"),
            ("--cache-controller", self.cache_controller, adaptive, "--cache adaptive"),
            ("--cache adaptive", adaptive, self.cache_controller, "--cache-controller"),
        )
        for option, given, is_met, needed in needs:
            if given and not is_met:
                raise ConfigError(f"{option} needs {needed}", hint=f"give {needed} too")


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
        client_timeout_s: Longest time a client may take to send the headers of a request, and as
            long again for its body; then it is answered 408 and the connection closed.
        engine_timeout_s: Longest wait of a request for an engine while a dead one is replaced; then
            it is answered 503.
        stall_timeout_s: Longest silence of an engine with work before it is replaced; above its
            longest step.
        spare: Keep a second engine loaded, which takes over within a second when the first one
            dies. It takes the memory of the weights again and about 0.3 GB for its process; its
            pool takes none before it is used.
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
    client_timeout_s: float = 30.0
    engine_timeout_s: float = 60.0
    stall_timeout_s: float = 600.0
    spare: bool = False
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
            client_timeout_s=(self.client_timeout_s > 0, "above 0"),
            engine_timeout_s=(self.engine_timeout_s >= 0, "at least 0"),
            stall_timeout_s=(self.stall_timeout_s > 0, "above 0"),
        )
