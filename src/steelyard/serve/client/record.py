"""What became of one request, as the client saw it."""

import math

import msgspec

__all__ = ["ERRORS", "RequestRecord"]

ERRORS = ("refused", "reset", "timeout", "protocol", "stream", "truncated", "http")
"""Kinds of error: no connection; connection lost in an answer; too slow; not HTTP or not a chunk;
an error event; no end mark; a status other than 200, whose code follows, such as "http 429"."""


class RequestRecord(msgspec.Struct, kw_only=True):
    """Times on the client's monotonic clock, in seconds from the start of the load.

    NaN for what did not happen.

    Attributes:
        index: row of the trace.
        client: name of its sender.
        session: conversation it belongs to, or empty.
        scheduled_s: when it should have been sent.
        sent_s: when it was.
        first_byte_s: when the head of the answer came.
        chunk_s: when each piece of text came, the first included.
        finished_s: end of the answer or of the attempt.
        prompt_tokens: length of the prompt as the server counts it, else as sent.
        output_tokens: length of the output as the server counts it, else one per piece of text.
        expected_tokens: output tokens asked for.
        retries: answers 429 after which it was sent again.
        finish_reason: why the output ended, in the server's word.
        error: kind of `ERRORS`, empty when all went well.
        message: the server's or system's words for the error.
        stages: seconds by stage, as the server says.
    """

    index: int
    scheduled_s: float
    client: str = "default"
    session: str = ""
    sent_s: float = math.nan
    first_byte_s: float = math.nan
    chunk_s: list[float] = []
    finished_s: float = math.nan
    prompt_tokens: int = 0
    output_tokens: int = 0
    expected_tokens: int = 0
    retries: int = 0
    finish_reason: str = ""
    error: str = ""
    message: str = ""
    stages: dict[str, float] = {}

    @property
    def is_ok(self) -> bool:
        """Whether a whole answer with some text came."""
        return not self.error

    @property
    def ttft_s(self) -> float:
        """Sending to first text; NaN without text."""
        return self.chunk_s[0] - self.sent_s if self.chunk_s else math.nan

    @property
    def e2e_s(self) -> float:
        """Sending to last text; NaN without text."""
        return self.chunk_s[-1] - self.sent_s if self.chunk_s else math.nan

    @property
    def tpot_s(self) -> float:
        """(Last - first text) / (output tokens - 1); NaN with fewer than two tokens."""
        return (
            (self.chunk_s[-1] - self.chunk_s[0]) / (self.output_tokens - 1)
            if self.output_tokens > 1 and self.chunk_s
            else math.nan
        )

    @property
    def late_s(self) -> float:
        """How much later than planned it was sent."""
        return self.sent_s - self.scheduled_s
