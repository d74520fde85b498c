"""`steelyard cost serve`: prefill and decoding on one accelerator."""

from typing import TYPE_CHECKING, Any

from steelyard.cli.cost.subject import Money, Price, Subject, derived, parts_of, print_costs
from steelyard.cli.following import say_next
from steelyard.cli.records import records_of

if TYPE_CHECKING:
    from steelyard.catalog import Architecture
    from steelyard.cost import Machine, MemoryBreakdown
    from steelyard.cost.why.chain import ChainStep

__all__ = ["serve"]


def serve(
    *, subject: Subject, context: int = 2048, batch: int = 1, price: Price | None = None
) -> int:
    """Forecast prefill and decoding on one accelerator.

    Example: steelyard cost serve --model llama-3.1-8b --machine L40S --context 8192 --batch 4

    Args:
        subject: model and machine.
        context: tokens of each user.
        batch: users that decode together.
        price: rent, and whether the chain is shown.

    Returns:
        Exit status: 1 where the memory does not suffice.
    """
    from steelyard.cli.shortage import shortage
    from steelyard.cost import kv_bytes_per_token, serving_memory
    from steelyard.plan.intervals import first_token, served_relative, timed

    device = subject.roofline()
    arch = subject.architecture()
    width = device.dtype_bytes
    passes = _Passes(arch, device, context, batch)
    decode = passes.decode_s
    width_of = served_relative(device, passes.parts)
    forecasts = [
        first_token(device, passes.prompt_s, batch, relative=width_of),
        *timed(
            device, {"serve.tpot": decode, "serve.throughput": batch / decode}, relative=width_of
        ),
    ]
    cache = kv_bytes_per_token(arch, width)
    forecasts.append(derived("serve.kv_bytes_per_token", cache, 0.0, "shape of the model"))
    # Engines take prompts in chunks: activations of 512 tokens are held however few users decode.
    memory = serving_memory(
        arch, tokens_resident=context * batch, step_tokens=max(batch, 512), dtype_bytes=width
    )
    free = device.memory_bytes - memory.weights - memory.activations - memory.workspace
    parts = parts_of(memory, "byte", "weights", "kv_cache", "total")
    parts.append(["users that fit", max(0, int(free // (cache * context)))])
    asked = price or Price()
    money = Money.of(asked, subject.machine, batch / decode)
    lack = shortage(arch, device, memory.total, "serve", context=context, users=batch)
    print_costs(
        lack or f"Serving {subject.model} on {subject.machine}",
        f"context {context:,}, batch {batch}",
        forecasts,
        parts,
        json=subject.json,
        money=money,
        why=[*passes.chain(memory), *money.steps()] if asked.why else None,
        records=records_of(subject.machine, "serve"),
    )
    if not subject.json:
        follows = ("which", "--model", subject.model, "--rate", "1 request/s")
        say_next("plan", *(("fit", subject.model, "--use", "serve") if lack else follows))
    return 1 if lack else 0


class _Passes:
    """Prefill and decoding of one accelerator, with their operators."""

    def __init__(self, arch: "Architecture", device: "Machine", context: int, batch: int) -> None:
        """List the operators and time them.

        Args:
            arch: model that is served.
            device: machine that serves it.
            context: tokens of each user.
            batch: users that decode together.
        """
        from steelyard.cost import operators, roofline_time_s
        from steelyard.plan.serving_parts import decode_parts

        self.arch, self.device = arch, device
        self.context, self.batch = context, batch
        shape: dict[str, Any] = {"dtype_bytes": device.dtype_bytes, "fused": device.fused}
        self.prompt = operators(arch, phase="prefill", tokens=context, **shape)
        self.decode = operators(
            arch, phase="decode", tokens=1, context=context, batch=batch, **shape
        )
        self.prompt_s = float(roofline_time_s(self.prompt, device))
        self.parts = decode_parts(self.decode, device)
        self.decode_s = float(roofline_time_s(self.decode, device))

    def chain(self, memory: "MemoryBreakdown") -> "list[ChainStep]":
        """Return the chain from memory and kernels to tokens per second."""
        from steelyard.cost.why.chain import ChainStep
        from steelyard.cost.why.kernels import kernel_steps
        from steelyard.cost.why.memory import serving_memory_steps

        width = self.device.dtype_bytes
        decode = kernel_steps(self.decode, self.device)
        rate = ChainStep(
            name="tokens_per_s",
            formula="users / kernel_time",
            numbers={"users": float(self.batch), "kernel_time": self.decode_s},
            value=self.batch / self.decode_s,
            unit="token/s",
            source="every user gets one token per pass",
        )
        return [
            *serving_memory_steps(
                self.arch,
                memory,
                bytes_per_weight=width,
                table_bytes=width,
                element_bytes=width,
                tokens_resident=self.context * self.batch,
            ),
            *kernel_steps(self.prompt, self.device, prefix="prompt_"),
            *decode,
            rate,
        ]
