"""How the tokens of a request are chosen and when it ends."""

from dataclasses import dataclass

from steelyard.errors import require

__all__ = ["SamplingParams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How the tokens of a request are chosen and when it ends.

    Attributes:
        max_tokens: most output tokens, at least 1.
        min_tokens: output tokens before an end token may be chosen.
        temperature: 0 takes the most likely token.
        top_p: keep the likeliest tokens that together reach this probability, in (0, 1].
        top_k: keep this many likeliest tokens, 0 for all.
        min_p: drop tokens below this share of the likeliest one's probability, in [0, 1].
        presence_penalty: taken from the logit of every token that is in the output, in [-2, 2].
        frequency_penalty: taken once for each time a token is in the output, in [-2, 2].
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or
            output, above 0.
        logit_bias: (token, addend) pairs.
        seed: seed of the draws; equal seeds yield equal outputs, whatever else runs.
        stop_tokens: token ids that end the output; the one met is not part of it.
        ignore_end: run to `max_tokens` whatever tokens come, as benchmarks do.
        logprobs: alternatives whose log probability is reported per output token, 0 for the chosen
            one only; None for no report.
        n: outputs returned, at least 1.
        best_of: outputs drawn, of which the `n` likeliest are returned; 0 for `n`.
        beam_width: beams of a beam search, 0 for none; with it, `n` is at most the width and draws
            are off.
        length_penalty: a finished beam's log probability is divided by its length to this power.
        grammar: JSON schema, regular expression or Lark grammar that the output must follow, as
            `running.grammar` spells it; "" for none.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    ignore_end: bool = False
    logprobs: int | None = None
    n: int = 1
    best_of: int = 0
    beam_width: int = 0
    length_penalty: float = 1.0
    grammar: str = ""

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            ConfigError: names the field, the value and the range.
        """
        require(
            self,
            max_tokens=(self.max_tokens >= 1, "at least 1"),
            min_tokens=(
                0 <= self.min_tokens <= self.max_tokens,
                f"in [0, max_tokens = {self.max_tokens}]",
            ),
            temperature=(0 <= self.temperature < float("inf"), "finite and at least 0"),
            top_p=(0 < self.top_p <= 1, "in (0, 1]"),
            top_k=(self.top_k >= 0, "at least 0, where 0 keeps all"),
            min_p=(0 <= self.min_p <= 1, "in [0, 1]"),
            presence_penalty=(-2 <= self.presence_penalty <= 2, "in [-2, 2]"),
            frequency_penalty=(-2 <= self.frequency_penalty <= 2, "in [-2, 2]"),
            repetition_penalty=(
                0 < self.repetition_penalty < float("inf"),
                "finite and above 0",
            ),
            seed=(0 <= self.seed < 2**63, "in [0, 2**63)"),
            logprobs=(self.logprobs is None or 0 <= self.logprobs <= 20, "in [0, 20], or None"),
            n=(self.n >= 1, "at least 1"),
            best_of=(self.best_of == 0 or self.best_of >= self.n, f"0 or at least n = {self.n}"),
            beam_width=(
                self.beam_width == 0 or self.beam_width >= self.n,
                f"0 or at least n = {self.n}",
            ),
        )

    @property
    def num_sequences(self) -> int:
        """Sequences that run side by side for one request."""
        return self.beam_width or self.best_of or self.n

    @property
    def needs_history(self) -> bool:
        """Whether a token depends on those before it in other ways than through the model."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.min_tokens
            or self.grammar
            or self.beam_width
        )
