"""Runs the plan of a step with PyTorch: pool tensors, one flattened batch through the dense layers, sampling."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve.running.attention import StepAttention
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
        keys: per layer [num_blocks * block_size, KV, D].
        values: per layer, the same shape.
        compiled: whether decode attention runs in the numba kernel.
    """

    def __init__(
        self, model: Transformer, config: SchedulerConfig, *, compiled: bool | None = None, sampler: Sampler | None = None
    ) -> None:
        """Allocate the pool in the model's dtype, on its device.

        Args:
            model: a decoder.
            config: pool and batch limits.
            compiled: use the numba kernel; by default for float32 on the CPU.
            sampler: chooses tokens; one without grammars by default.

        Raises:
            ConfigError: `max_model_len` is beyond the model's positions, or the kernel does not take the dtype or device.
            CapacityError: the device has no memory for the pool.
        """
        arch = model.architecture
        if config.max_model_len > arch.max_positions:
            message = f"max_model_len {config.max_model_len} is beyond the {arch.max_positions} positions of {arch.name}"
            raise ConfigError(message, hint="lower max_model_len")
        weight = next(model.parameters())
        fits = weight.device.type == "cpu" and weight.dtype == torch.float32
        if compiled and not fits:
            raise ConfigError(f"the compiled kernel takes float32 on the CPU, not {weight.dtype} on {weight.device}", hint="compiled=False")
        self.model = model.eval()
        self.config = config
        self.sampler = sampler or Sampler()
        self.compiled = fits if compiled is None else compiled
        self._device = weight.device
        helpers = torch.get_num_threads() - 1
        self._helpers = ThreadPoolExecutor(helpers, thread_name_prefix="decode") if self.compiled and helpers else None
        shape = (config.num_blocks * config.block_size, arch.num_kv_heads, arch.head_dim)
        try:
            self.keys = [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(arch.num_layers)]
            self.values = [torch.zeros_like(item) for item in self.keys]
        except RuntimeError as error:
            message = f"no memory for {config.num_blocks} blocks of {config.block_size} tokens in {arch.num_layers} layers"
            raise CapacityError(message, hint="lower num_blocks") from error

    @property
    def pool_bytes(self) -> int:
        """Bytes of all pool tensors."""
        return sum(item.numel() * item.element_size() for item in (*self.keys, *self.values))

    def warm_up(self) -> None:
        """Compile kernels and start thread pools, so that no timed step pays for it; the pool stays as it was."""
        saved = [item[:1].clone() for item in (*self.keys, *self.values)]
        for num_decodes in (0, 1):
            self.execute(_one_token_plan(num_decodes))
        for item, row in zip((*self.keys, *self.values), saved, strict=True):
            item[:1] = row

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step.

        Args:
            plan: from a scheduler of the same config.

        Returns:
            The tokens of the sampled rows.
        """
        if len(plan.copies):
            self._copy_blocks(plan.copies)
        attend = StepAttention(plan, self.keys, self.values, self.config.block_size, compiled=self.compiled, helpers=self._helpers)
        tokens = torch.from_numpy(plan.token_ids).to(self._device)
        positions = torch.from_numpy(plan.positions).to(self._device)
        hidden = self.model.run(tokens, positions, attend)
        if not plan.sampled:
            return plan.blank_output()
        logits = self.model.head(hidden[torch.from_numpy(plan.sample_rows).to(self._device)])
        return self.sampler.sample(logits, plan)

    def _copy_blocks(self, copies: np.ndarray) -> None:
        """Copy whole blocks, all layers."""
        source, target = (torch.from_numpy(np.ascontiguousarray(column)).to(self._device) for column in copies.T)
        for item in (*self.keys, *self.values):
            blocks = item.view(self.config.num_blocks, self.config.block_size, *item.shape[1:])
            blocks[target] = blocks[source]


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
