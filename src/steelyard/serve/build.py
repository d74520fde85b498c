"""Makes the engine that options describe."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from steelyard.nn import checkpoint
from steelyard.nn.traits import refuse_unserved
from steelyard.nn.transformer import Transformer
from steelyard.serve.engine import LLM, default_config
from steelyard.serve.options import EngineOptions
from steelyard.serve.running.grammar import Grammars
from steelyard.serve.running.pool import slot_bytes
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.running.weights import chosen_weights, kv_type
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.fairness import VTC
from steelyard.serve.sparse.serving import bounded_engine
from steelyard.serve.weight_choice import with_weights

__all__ = ["engine_config", "load_model", "make_engine"]

_BLOCK_TOKENS = 16


def make_engine(
    model: Path | Transformer,
    options: EngineOptions,
    *,
    end_tokens: tuple[int, ...] = (),
    grammars: Grammars | None = None,
) -> LLM:
    """Make an engine: the one way from options to `LLM`, of the server and of every command.

    Args:
        model: decoder, or the folder or GGUF file of one.
        options: kind of engine; threads and cores are the process's affair and not looked at.
            "auto" weights of a folder are chosen by `weight_choice.with_weights`.
        end_tokens: token ids that end any output unless its request ignores them.
        grammars: follows grammars; without it requests with a grammar are refused.

    Returns:
        An idle engine.

    Raises:
        ConfigError: the options do not fit the model.
        CapacityError: the pool or the host tier is too small, or there is no memory for it.
        BackendError: native kernels are asked for and cannot be had.
        DataError: the folder holds no model.
    """
    if isinstance(model, Path):
        options, _, _ = with_weights(options, model)
    decoder = load_model(model, options) if isinstance(model, Path) else model
    weights = options.client_weights
    make_policy = (lambda: VTC(weights=weights)) if weights else None
    if options.cache != "full":
        return bounded_engine(
            decoder, options, end_tokens=end_tokens, grammars=grammars, make_policy=make_policy
        )
    return LLM(
        decoder,
        engine_config(decoder, options),
        end_tokens=end_tokens,
        asynchronous=options.asynchronous,
        sampler=Sampler(grammars),
        kv_dtype=_kv_dtype(options),
        native=options.native,
        weights=options.weights,
        swap_folder=options.swap_folder,
        make_policy=make_policy,
        speculate=_guesser(options),
    )


def _guesser(options: EngineOptions) -> Transformer | Literal["off", "ngram"]:
    """Return what an engine is to guess with, a small model loaded."""
    if options.speculate == "auto":
        # A step that is planned while another runs does not know the tokens to guess from.
        return "off" if options.asynchronous else "ngram"
    if options.speculate == "off" or options.speculate == "ngram":
        return options.speculate
    # A model that is small enough to guess with needs no narrower weights.
    plain = EngineOptions(max_model_len=options.max_model_len)
    return load_model(Path(options.speculate), plain)


def load_model(folder: Path, options: EngineOptions, *, is_checked: bool = False) -> Transformer:
    """Load a model in the type that an engine of it needs.

    Args:
        folder: folder of a model.
        options: kind of engine; "auto" weights stay in bfloat16 where the folder stores it and the
            processor multiplies it: elsewhere prompts would take longer than in float32.
        is_checked: whether the caller has compared the hashes of the folder already.

    Returns:
        The model: as stored, in float32 or bfloat16, else converted to float32. What is stored is
        mapped from the file, codes are kept, and what has to be converted is read when it is
        packed, so that an engine holds its weights once.

    Raises:
        DataError: the folder holds no model.
        ConfigError: the model has a trait that cannot be built.
    """
    plain = options.weights == "fp32" or options.cache != "full"
    if options.weights == "auto" and not torch.cpu._is_avx512_bf16_supported():
        plain = True
    model = checkpoint.load(
        folder,
        dtype=torch.float32 if plain else None,
        max_positions=options.max_model_len or None,
        is_checked=is_checked,
        keep_stored=options.cache == "full",
    )
    refuse_unserved(model.architecture)
    return model


def engine_config(model: Transformer, options: EngineOptions) -> SchedulerConfig:
    """Derive the limits of an engine from its options and the model.

    Args:
        model: a decoder.
        options: kind of engine.

    Returns:
        Limits with blocks of 16 tokens.

    Raises:
        CapacityError: the pool or the host tier cannot hold one sequence of the model length.
    """
    kept = kv_type(model, chosen_weights(model, options.weights), _kv_dtype(options))
    block_bytes = _BLOCK_TOKENS * slot_bytes(model.architecture, kept)
    config = default_config(
        model,
        pool_bytes=options.num_blocks * block_bytes or options.pool_bytes,
        max_model_len=options.max_model_len,
        token_budget=options.token_budget,
        kv_dtype=_kv_dtype(options),
        weights=options.weights,
    )
    swaps = options.preemption != "recompute"
    given = options.host_tier_bytes
    tier = given // block_bytes if given else config.num_blocks
    return replace(
        config,
        # Each running sequence takes a token of every step at least.
        max_num_seqs=min(options.max_num_seqs, options.token_budget),
        whole_prompts=options.whole_prompts,
        policy=options.policy,
        update_every=options.update_every,
        prefix_caching=options.prefix_caching,
        preemption=options.preemption,
        host_blocks=tier if swaps else 0,
        keep_turns=options.keep_turns,
        allocator=options.allocator,
        group_blocks=options.group_blocks,
    )


def _kv_dtype(options: EngineOptions) -> torch.dtype | None:
    """Return the type of keys and values, None for the one that goes with the weights."""
    return None if options.kv_dtype == "model" else getattr(torch, options.kv_dtype)
