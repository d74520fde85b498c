"""Runs steps through the model's own forward, on any device.

This is the reference, and with packed weights and the numba kernel the path without a compiler.
"""

from concurrent.futures import Executor

import numpy as np
import torch
from torch import Tensor

from steelyard.nn.attention import Attend
from steelyard.nn.traits import attention_traits
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.attention import StepAttention
from steelyard.serve.running.gpu_attention import GPUStepAttention, gpu_kernel_fits
from steelyard.serve.running.latent import LatentStepAttention, with_cached_latents
from steelyard.serve.running.packed_model import packable, packed_model, without_capacity
from steelyard.serve.running.pool import KVPool
from steelyard.serve.running.weights import ComputedIn
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["ModelSteps"]


class ModelSteps:
    """A model and its pool.

    Attributes:
        packed_bytes: bytes of the packed weights, 0 without.
        weights: type of the packed products.
    """

    def __init__(
        self,
        model: Transformer,
        pool: KVPool,
        *,
        compiled: bool,
        helpers: Executor | None = None,
        weights: ComputedIn = "fp32",
    ) -> None:
        """Pack the weights if `compiled`.

        Args:
            model: model in evaluation mode.
            pool: keys and values.
            compiled: use packed linear layers and the numba kernel (on the CPU); later changes of
                weights are not seen.
            helpers: threads that share the numba kernel's rows.
            weights: type of the packed products.

        Raises:
            BackendError: this PyTorch has no products of the type.
        """
        self._pool = pool
        self._compiled = compiled
        self._helpers = helpers
        arch = self._arch = model.architecture
        # The Triton kernel has neither windows nor caps.
        self._on_gpu = gpu_kernel_fits(pool) and not attention_traits(arch, arch.max_positions)
        self._group = arch.num_heads // arch.num_kv_heads
        if arch.kv_lora_rank:
            # Packed products take and give float32.
            dtype = torch.float32 if compiled else next(model.parameters()).dtype
            model = with_cached_latents(model, dtype)
        self._model, self.packed_bytes = model, 0
        self.weights: ComputedIn = packable(model, weights) if compiled else weights
        if compiled:
            self._model, self.packed_bytes = packed_model(model, self.weights)
        elif arch.capacity_factor:
            self._model = without_capacity(model)

    @torch.inference_mode()
    def logits(self, plan: StepPlan, token_ids: np.ndarray) -> Tensor | None:
        """Run a step.

        Args:
            plan: the step.
            token_ids: int64 [T], none of them unknown.

        Returns:
            Logits [R, V] of the sampled rows; None when there are none.
        """
        device = self._pool.kv.device
        if self._on_gpu:
            attend: Attend = GPUStepAttention(plan, self._pool, self._group)
        else:
            steps = StepAttention(
                plan, self._pool, self._arch, compiled=self._compiled, helpers=self._helpers
            )
            has_latents = self._arch.kv_lora_rank > 0
            attend = LatentStepAttention(steps, self._model) if has_latents else steps
        tokens, positions = (
            torch.from_numpy(item).to(device) for item in (token_ids, plan.positions)
        )
        hidden = self._model.run(tokens, positions, attend)
        if not len(plan.sample_rows):
            return None
        return self._model.head(hidden[torch.from_numpy(plan.sample_rows).to(device)])
