"""Runs one configuration of a model on its own engine: answers, losses, speed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from steelyard.cost.held import parameter_count
from steelyard.cost.weights import engine_bytes_per_weight
from steelyard.errors import CapacityError, ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.plan.tradeoff.cells import ClockName, MeasurePlan, QualityCell, SpeedCell
from steelyard.plan.tradeoff.configuration import Configuration, positioned
from steelyard.plan.tradeoff.prompts import Surprisal, prompt_tokens
from steelyard.plan.tradeoff.tasks import (
    TASKS,
    Encode,
    Question,
    TaskKind,
    draw_questions,
    draw_texts,
)
from steelyard.serve.build import make_engine
from steelyard.serve.engine import LLM
from steelyard.serve.heap import frozen_heap
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scoring import bounded_losses, engine_losses
from steelyard.serve.sparse.serving import CACHES

__all__ = ["Bench", "ProcessorClock", "weight_bytes"]

_AMPLE = 16
"""Sequences of the longest length whose keys and values fit where only answers matter."""
_KV = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


def weight_bytes(model: Transformer, weights: str) -> float:
    """Return the bytes of a model's weights in an engine.

    Args:
        model: a decoder; embeddings and head stay in its own type.
        weights: type of the layers' weights.

    Returns:
        Bytes.
    """
    arch = model.architecture
    layers, tables = parameter_count(arch)
    each = engine_bytes_per_weight(weights, arch.hidden_size)
    return layers * each + tables * model.embedding.weight.element_size()


@dataclass
class Bench:
    """One model, its text and what is measured of it.

    Attributes:
        model: a decoder as it was trained.
        text: int64 [N] tokens that it was not trained on.
        encode: turns a string into tokens.
        begins: bool [V] tokens with which a new word begins.
        plan: what is measured.
        clock: what the seconds of speed are.
    """

    model: Transformer
    text: np.ndarray
    encode: Encode
    begins: np.ndarray
    plan: MeasurePlan
    clock: ClockName = "wall"

    @cached_property
    def longest(self) -> int:
        """Longest sequence that is run."""
        return max(self.plan.lengths) + max(self.plan.output_tokens, 32)

    @cached_property
    def surprisal(self) -> Surprisal:
        """What scores contexts that are to be shortened: the model itself."""
        return Surprisal(self.model, self.begins)

    def questions(self, task: TaskKind, length: int, count: int, seed: int) -> list[Question]:
        """Draw questions of the plan."""
        return draw_questions(
            task,
            length,
            count,
            text=self.text,
            encode=self.encode,
            template=self.plan.template,
            seed=seed,
        )

    def accuracy(self, chosen: Configuration, asked: list[Question]) -> float:
        """Return the share of questions that a configuration answers right."""
        llm = self._ample_engine(positioned(self.model, chosen, self.longest), chosen)
        try:
            return self._share(llm, chosen, asked)
        finally:
            llm.close()

    def quality(self, chosen: Configuration, seed: int) -> QualityCell:
        """Return how well a configuration answers, whatever memory that takes."""
        model = positioned(self.model, chosen, self.longest)
        llm = self._ample_engine(model, chosen)
        plan = self.plan
        try:
            accuracy = {
                task: [
                    self._share(llm, chosen, self.questions(task, length, plan.count, seed))
                    for length in plan.lengths
                ]
                for task in TASKS
            }
        finally:
            llm.close()
        losses = [
            self._loss(model, chosen, draw_texts(length, plan.texts, text=self.text, seed=seed))
            for length in plan.lengths
        ]
        return QualityCell(configuration=chosen.name, seed=seed, accuracy=accuracy, loss=losses)

    def speed(self, chosen: Configuration, repeat: int) -> SpeedCell:
        """Return how fast a configuration is in the memory of the plan."""
        size = weight_bytes(self.model, "fp32" if chosen.is_bounded else chosen.weights)
        model = positioned(self.model, chosen, self.longest)
        rows: list[tuple[float, float, float]] = []
        fits = 0.0
        try:
            pool = int(self.plan.memory_bytes - size)
            if pool <= 0:
                raise CapacityError(f"{chosen.name}: {size:.0f} bytes of weights do not fit")
            # A bounded cache keeps no more of a longer sequence, so it may be as long as any.
            llm = make_engine(model, chosen.options(pool, self.longest if chosen.is_bounded else 0))
        except CapacityError:
            rows = [(0.0, 0.0, 0.0) for _ in self.plan.reference]
        else:
            try:
                fits = np.inf if chosen.is_bounded else _room(llm) / chosen.prompt_kept
                for length in self.plan.reference:
                    rows.append(self._served(llm, chosen, length, repeat))
            finally:
                llm.close()
        rates, firsts, others = (list(column) for column in zip(*rows, strict=True))
        return SpeedCell(
            configuration=chosen.name,
            round=repeat,
            tokens_per_s=rates,
            ttft_s=firsts,
            tpot_s=others,
            fits_tokens=min(fits, 1e18),
            weight_bytes=size,
        )

    def asked(self, length: int, repeat: int) -> list[Question]:
        """Return what a round of speed asks: several questions about each of some documents."""
        drawn = self.questions("recall", length, self.plan.documents, 1000 + repeat)
        return [
            replace(document, question=drawn[(row + turn) % len(drawn)].question)
            for turn in range(self.plan.asks)
            for row, document in enumerate(drawn)
        ]

    def _ample_engine(self, model: Transformer, chosen: Configuration) -> LLM:
        """Return an engine with memory enough that no answer waits."""
        arch = self.model.architecture
        slot = 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim * 4
        return make_engine(model, chosen.options(_AMPLE * self.longest * slot, self.longest))

    def _share(self, llm: LLM, chosen: Configuration, asked: list[Question]) -> float:
        """Return the share of questions whose whole answer is right."""
        prompts = [self._prompt(chosen, item) for item in asked]
        params = [SamplingParams(max_tokens=len(item.answer), ignore_end=True) for item in asked]
        llm.reset()
        done = llm.generate(prompts, params)
        right = [
            tuple(found.tokens) == item.answer for found, item in zip(done, asked, strict=True)
        ]
        return float(np.mean(right))

    def _loss(self, model: Transformer, chosen: Configuration, asked: list[Question]) -> float:
        """Return nats per token of what follows the contexts."""
        rows = [np.array([*self._prompt(chosen, item), *item.answer]) for item in asked]
        last = len(asked[0].answer)
        if chosen.is_bounded:
            policy = CACHES[chosen.cache](chosen.cache_tokens or 256)
            # Shortened contexts differ in length, and a slab decodes rows of one length.
            parts = [np.stack(rows)] if chosen.prompt == "whole" else [row[None] for row in rows]
            told = [bounded_losses(model, policy, part, last) for part in parts]
            return float(np.mean(np.concatenate(told)))
        losses = engine_losses(
            model, rows, weights=chosen.weights, kv_dtype=_KV[chosen.kv_dtype], last=last
        )
        return float(np.mean([row.mean() for row in losses]))

    def _prompt(self, chosen: Configuration, item: Question) -> list[int]:
        """Return what the engine is given for a question."""
        return prompt_tokens(item.context, item.question, chosen, self.surprisal)

    def _served(
        self, llm: LLM, chosen: Configuration, length: int, repeat: int
    ) -> tuple[float, float, float]:
        """Serve some questions about each of some documents; return rate, TTFT and TPOT."""
        plan = self.plan
        asked = self.asked(length, repeat)
        params = SamplingParams(max_tokens=plan.output_tokens, ignore_end=True)
        _drain(llm, [[*asked[0].question]], params)
        now_s = time.perf_counter
        if self.clock == "processor":
            now_s = time.process_time
            llm.clock = ProcessorClock()
        llm.reset()
        with frozen_heap():
            start = now_s()
            prompts = [self._prompt(chosen, item) for item in asked]
            shortened_s = now_s() - start
            try:
                done = _drain(llm, prompts, params)
            except (CapacityError, ConfigError):  # longer than what the memory holds
                return 0.0, 0.0, 0.0
            seconds = now_s() - start
        # Shortening a prompt is part of serving it, and of the time to its first token.
        first = [item.first_token_s - item.arrival_s for item in done]
        further = [
            (item.last_token_s - item.first_token_s) / (plan.output_tokens - 1) for item in done
        ]
        ttft_s = float(np.mean(first)) + shortened_s / len(prompts)
        if plan.ttft_s and ttft_s > plan.ttft_s:
            return 0.0, ttft_s, float(np.mean(further))
        return len(done) * plan.output_tokens / seconds, ttft_s, float(np.mean(further))


class ProcessorClock:
    """Seconds that the processor spent on this process, all threads together."""

    def now_s(self) -> float:
        """Return them."""
        return time.process_time()

    def wait_until(self, time_s: float) -> None:
        """Return at once: nothing here waits for a time, as all requests come together."""


def _room(llm: LLM) -> float:
    """Return the tokens that a pool holds."""
    return float(llm.config.num_blocks * llm.config.block_size)


def _drain(llm: LLM, prompts: Sequence[list[int]], params: SamplingParams) -> list[Request]:
    """Send prompts at once and return their requests when all have ended."""
    names = [llm.add_request(prompt, params) for prompt in prompts]
    done: dict[str, Request] = {}
    while len(done) < len(names):
        done.update({request.id: request for request in llm.step().finished})
    return [done[name] for name in names]
