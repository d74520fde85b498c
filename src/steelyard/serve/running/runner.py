"""Runs the plan of a step: pool tensor, one flattened batch through the dense layers, sampling."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import BackendError, CapacityError, ConfigError
from steelyard.native import switched_off
from steelyard.nn.traits import beyond_kernels, refuse_unserved
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.launcher import EngineRunner
from steelyard.serve.running.model_steps import ModelSteps
from steelyard.serve.running.pool import KVPool
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.running.weights import ComputedIn, chosen_weights, kv_type
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.scheduler import SchedulerConfig
from steelyard.serve.scheduling.step import StepOutput, StepPlan

if TYPE_CHECKING:
    from steelyard.serve.running.native.steps import NativeSteps

__all__ = ["TorchRunner"]

_OWN_FORWARD = {torch.float32: ("fp32",), torch.bfloat16: ("bf16",)}


class _Steps(Protocol):
    """Runs the dense layers and attention of a step."""

    packed_bytes: int

    def logits(self, plan: StepPlan, token_ids: np.ndarray) -> Tensor | None:
        """Return logits [R, V] of the sampled rows."""
        ...


class TorchRunner(EngineRunner):
    """Executes step plans on one device.

    Attributes:
        model: model in evaluation mode.
        config: pool and batch limits.
        sampler: turns logits into tokens.
        pool: keys and values.
        compiled: whether the runner uses packed weights and compiled kernels instead of the model's
            own forward.
        kernel: what runs a step: "native" (C++ compiled on this machine), "numba", or "torch" (the
            model's own forward).
        kernel_note: why it is not "native"; empty when it is.
        weights: type in which the linear layers are computed; None for the model's own forward in
            a type of its own.
    """

    def __init__(
        self,
        model: Transformer,
        config: SchedulerConfig,
        *,
        compiled: bool | None = None,
        sampler: Sampler | None = None,
        kv_dtype: torch.dtype | None = None,
        native: bool | None = None,
        weights: str = "auto",
    ) -> None:
        """Allocate the pool on the model's device.

        Args:
            model: a decoder.
            config: pool and batch limits.
            compiled: use packed weights and compiled kernels; by default for float32 and bfloat16
                on the CPU.
                Packing copies the weights once, so later changes of the model's weights do not
                reach the runner.
            sampler: chooses tokens; one without grammars by default.
            kv_dtype: type of keys and values in the pool; `weights.kv_type` by default.
                `torch.bfloat16` halves the bytes that decoding reads; `torch.int8`, with a scale
                per head and token, leaves little more than a fourth.
            native: use the C++ kernels, or with False the numba ones; by default where a compiler
                is found and the processor is of a kind on which they proved faster.
                `STEELYARD_NATIVE=0` in the environment stands for False.
            weights: type in which the linear layers are computed: "fp32", "bf16", "int8" or
                "int4"; "auto" takes that of the model.

        Raises:
            BackendError: `native` is asked for and cannot be had.
            ConfigError: `max_model_len` is beyond the model's positions, or the kernel does not
                take the dtype or device.
            CapacityError: the device has no memory for the pool.
        """
        super().__init__(sampler or Sampler())
        weight = next(model.parameters())
        self.weights: ComputedIn | None = chosen_weights(model, weights)
        self.compiled = _refuse(model, config, compiled, kv_dtype, self.weights)
        self.model = model.eval()
        self.config = config
        self.pool = KVPool(
            model.architecture,
            config.num_blocks,
            config.block_size,
            kv_type(model, self.weights, kv_dtype),
            weight.device,
        )
        self.kernel, self.kernel_note, self._steps = self._choose(native)

    @property
    def kv(self) -> Tensor:
        """Keys and values [L, 2, num_blocks, ...], of which runs of blocks are contiguous."""
        return self.pool.kv

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool tensor."""
        return self.pool.num_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of the runner's packed copy of the weights, beside the model's own."""
        return self._steps.packed_bytes

    @property
    def native_steps(self) -> "NativeSteps | None":
        """What runs steps in the native kernels; None where something else runs them."""
        return cast("NativeSteps", self._steps) if self.kernel == "native" else None

    def warm_up(self) -> None:
        """Compile kernels and start thread pools, so that no timed step pays for it.

        The pool stays as it was.
        """
        saved = self.kv[:, :, :1].clone()  # the plans below write to slot 0
        # A prompt's step and a decoding one run different code but for the native kernels, in which
        # there is nothing to compile either.
        for num_decodes in (0,) if self.kernel == "native" else (0, 1):
            self.execute(_one_token_plan(num_decodes))
        self.kv[:, :, :1] = saved
        self.sampler.warm_up(self.model.architecture.vocab_size)

    def _run(self, plan: StepPlan, token_ids: np.ndarray) -> StepOutput:
        """Run one step now."""
        if len(plan.copies):  # first: this very step may write to the source of a copy
            self.pool.copy_blocks(plan.copies)
        logits = self._steps.logits(plan, token_ids)
        if plan.num_decodes == len(plan.request_ids):  # no prompt waits for this step
            self.pool.take_ahead(max(plan.slot_mapping.tolist()) // self.config.block_size)
        if logits is None:
            return plan.blank_output()
        native = self.native_steps
        return self.sampler.sample(logits, plan, native.peaks if native else None)

    def _choose(self, native: bool | None) -> tuple[str, str, _Steps]:
        """Take the best kernels that this machine and model allow, and say why not better ones."""
        steps, note = self._native_steps(native)
        if steps is not None:
            return "native", "", steps
        if native:
            raise BackendError(
                f"native kernels cannot run: {note}", hint="leave native out to fall back by itself"
            )
        threads = torch.get_num_threads()
        helpers = None
        if self.compiled and threads > 1:
            helpers = ThreadPoolExecutor(threads - 1, thread_name_prefix="decode")
        steps = ModelSteps(
            self.model,
            self.pool,
            compiled=self.compiled,
            helpers=helpers,
            weights=self.weights or "fp32",
        )
        if self.compiled:
            self.weights = steps.weights
        return ("numba" if self.compiled else "torch"), note, steps

    def _native_steps(self, native: bool | None) -> tuple[_Steps | None, str]:
        """Return the native kernels, or None and the reason."""
        if not self.compiled or self.weights is None:
            return None, "not compiled: the model's own forward runs"
        if native is False or (native is None and switched_off()):
            return None, "switched off"
        # Imported late: an engine without native kernels has no use for them.
        from steelyard.serve.running.native import draws, layout, library, steps, trial

        if not layout.fits(self.model):
            beyond = " and ".join(beyond_kernels(self.model.architecture))
            if beyond:
                return None, f"native kernels have no {beyond}"
            return None, "native kernels take widths in multiples of 8"
        threads = torch.get_num_threads()
        try:
            kernels = library.compiled_library()
            # Who asks for native kernels by name gets them, on whatever processor.
            note = "" if native else trial.refusal(kernels, threads, self.weights)
            if note:
                return None, note
            sampling = draws.NativeSampling()
            made = steps.NativeSteps(
                self.model,
                self.pool,
                kernels,
                rows=self.config.token_budget,
                threads=threads,
                weights=self.weights,
            )
            self.sampler.kernels = sampling
            return made, ""
        except (BackendError, CapacityError) as error:
            return None, str(error)


def _refuse(
    model: Transformer,
    config: SchedulerConfig,
    compiled: bool | None,
    kv_dtype: torch.dtype | None,
    weights: str | None,
) -> bool:
    """Refuse what does not fit together, and return whether compiled kernels run."""
    arch = model.architecture
    refuse_unserved(arch)
    weight = next(model.parameters())
    if config.max_model_len > arch.max_positions:
        message = (
            f"max_model_len {config.max_model_len} is beyond the {arch.max_positions} "
            f"positions of {arch.name}"
        )
        raise ConfigError(message, hint="lower max_model_len")
    if compiled and weights is None:
        raise ConfigError(
            f"the compiled kernel takes float32 or bfloat16 on the CPU, not {weight.dtype} on "
            f"{weight.device}",
            hint="compiled=False",
        )
    if compiled is False and weights not in (None, *_OWN_FORWARD.get(weight.dtype, ())):
        raise ConfigError(
            f"the model's own forward computes in {weight.dtype}, not in {weights}",
            hint="leave compiled out",
        )
    if arch.kv_lora_rank and kv_dtype == torch.int8:
        raise ConfigError(
            f"kv_dtype is int8, but {arch.name} keeps latents (kv_lora_rank = {arch.kv_lora_rank})",
            hint="keep them in float32 or bfloat16",
        )
    if kv_dtype not in (None, torch.float32, torch.bfloat16, torch.int8, weight.dtype):
        raise ConfigError(
            f"kv_dtype is {kv_dtype}, but must be float32, bfloat16, int8 or the model's "
            f"{weight.dtype}",
            hint="leave it out",
        )
    return weights is not None if compiled is None else compiled


def _one_token_plan(num_decodes: int) -> StepPlan:
    """Make a plan that runs token 0 in slot 0."""
    zero = np.zeros(1, dtype=np.int64)
    one = np.ones(1, dtype=np.int64)
    return StepPlan(
        request_ids=["warm-up"],
        num_decodes=num_decodes,
        token_ids=zero,
        positions=zero,
        slot_mapping=zero,
        query_lengths=one,
        context_lengths=one,
        block_tables=np.zeros((1, 1), dtype=np.int64),
        sample_rows=zero,
        sampled=[Request(id="warm-up", prompt=[0])],
        output_positions=zero,
    )
