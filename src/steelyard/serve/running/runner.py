"""Runs the plan of a step: pool tensor, one flattened batch through the dense layers, sampling."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.serve.running.attention import StepAttention
from steelyard.serve.running.launch import Launch, Launcher
from steelyard.serve.running.linear import can_pack, packed_model
from steelyard.serve.running.pool import KVPool
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.scheduler import SchedulerConfig
from steelyard.serve.scheduling.step import StepOutput, StepPlan

if TYPE_CHECKING:
    from steelyard.nn.transformer import Transformer

__all__ = ["TorchRunner"]


class TorchRunner:
    """Executes step plans on one device.

    Attributes:
        model: in evaluation mode.
        config: pool and batch limits.
        sampler: turns logits into tokens.
        pool: keys and values.
        compiled: whether the runner uses packed weights and compiled kernels instead of the model's own forward.
        kernel: what runs attention: "numba" or "torch".
    """

    def __init__(
        self,
        model: Transformer,
        config: SchedulerConfig,
        *,
        compiled: bool | None = None,
        sampler: Sampler | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """Allocate the pool on the model's device.

        Args:
            model: a decoder.
            config: pool and batch limits.
            compiled: use packed weights and compiled kernels; by default for float32 on the CPU. Packing copies the weights once, so
                later changes of the model's weights do not reach the runner.
            sampler: chooses tokens; one without grammars by default.
            kv_dtype: of keys and values in the pool; the model's by default. `torch.bfloat16` halves the bytes that decoding reads.

        Raises:
            ConfigError: `max_model_len` is beyond the model's positions, or the kernel does not take the dtype or device.
            CapacityError: the device has no memory for the pool.
        """
        arch, weight = model.architecture, next(model.parameters())
        self.compiled = _refuse(model, config, compiled, kv_dtype)
        self.model = model.eval()
        self.config = config
        self.sampler = sampler or Sampler()
        self.pool = KVPool(arch, config.num_blocks, config.block_size, kv_dtype or weight.dtype, weight.device)
        self.kernel = "numba" if self.compiled else "torch"
        self._device = weight.device
        helpers = torch.get_num_threads() - 1
        self._helpers = ThreadPoolExecutor(helpers, thread_name_prefix="decode") if self.compiled and helpers else None
        self._running = packed_model(model) if self.compiled and can_pack(weight) else model
        self._launcher = Launcher(self._run)

    @property
    def kv(self) -> Tensor:
        """Keys and values [L, 2, num_blocks, ...]; consecutive blocks of one layer's keys or values are contiguous."""
        return self.pool.kv

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool tensor."""
        return self.pool.num_bytes

    def warm_up(self) -> None:
        """Compile kernels and start thread pools, so that no timed step pays for it; the pool stays as it was."""
        saved = self.kv[:, :, :1].clone()
        for num_decodes in (0, 1):
            self.execute(_one_token_plan(num_decodes))
        self.kv[:, :, :1] = saved

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step, after all that were launched.

        Args:
            plan: from a scheduler of the same config.

        Returns:
            The tokens of the sampled rows.
        """
        return self._launcher.execute(plan)

    def launch(self, plan: StepPlan) -> Launch:
        """Run a step in the runner's thread, after all launched before it.

        Args:
            plan: from a scheduler of the same config; tokens that the previous step has yet to give stand in `feedback`.

        Returns:
            Its `result()` waits for the output.
        """
        return self._launcher.launch(plan)

    @torch.inference_mode()
    def _run(self, plan: StepPlan, token_ids: np.ndarray) -> StepOutput:
        """Run one step now."""
        if len(plan.copies):
            self.pool.copy_blocks(plan.copies)
        attend = StepAttention(plan, self.pool, compiled=self.compiled, helpers=self._helpers)
        tokens = torch.from_numpy(token_ids).to(self._device)
        positions = torch.from_numpy(plan.positions).to(self._device)
        hidden = self._running.run(tokens, positions, attend)
        if not plan.sampled:
            return plan.blank_output()
        logits = self._running.head(hidden[torch.from_numpy(plan.sample_rows).to(self._device)])
        return self.sampler.sample(logits, plan)


def _refuse(model: Transformer, config: SchedulerConfig, compiled: bool | None, kv_dtype: torch.dtype | None) -> bool:
    """Refuse what does not fit together; else give whether compiled kernels run."""
    arch, weight = model.architecture, next(model.parameters())
    if config.max_model_len > arch.max_positions:
        message = f"max_model_len {config.max_model_len} is beyond the {arch.max_positions} positions of {arch.name}"
        raise ConfigError(message, hint="lower max_model_len")
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32
    if compiled and not fits:
        raise ConfigError(f"the compiled kernel takes float32 on the CPU, not {weight.dtype} on {weight.device}", hint="compiled=False")
    if kv_dtype not in (None, torch.float32, torch.bfloat16, weight.dtype):
        raise ConfigError(f"kv_dtype is {kv_dtype}, but must be float32, bfloat16 or the model's {weight.dtype}", hint="leave it out")
    return fits if compiled is None else compiled


def _one_token_plan(num_decodes: int) -> StepPlan:
    """Make a plan that runs token 0 in slot 0."""
    zero, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
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
