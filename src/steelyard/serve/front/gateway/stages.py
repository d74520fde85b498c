"""Where the time of a request went, from its arrival to the last byte handed to the network."""

import math
import time

__all__ = ["STAGES", "StageClock"]

STAGES = (
    "parse",
    "tokenize",
    "queue",
    "send",
    "engine_queue",
    "prefill",
    "decode",
    "detokenize",
    "relay",
)
"""Stages in their order.

parse: reading and checking the body. tokenize: prompt to token ids. queue: waiting in the gateway
for an engine. send: gateway to engine. engine_queue: until the first step that runs the request.
prefill: until the first output token. decode: until the last output token. detokenize: text of the
last step's tokens, the only ones that nobody waits for the engine meanwhile. relay: everything
after the last output token but that: frame, wake-up, formatting, hand-over to the network."""


class StageClock:
    """Stamps of one request on the machine's monotonic clock, seconds; NaN before they are taken.

    Attributes:
        arrived_s: headers were read.
        parsed_s: the body was decoded and checked.
        tokenized_s: prompts are token ids.
        sent_s: the request was written to the engine, after waiting for one if there was none.
        received_s: the engine read it.
        begun_s: the first step with it began.
        first_s: its first output token was known to the engine.
        last_s: its latest output token was.
        first_relayed_s: the first text was handed to the network.
        detokenize_s: seconds spent on the text of the last step.
        queued_s: seconds without an engine.
    """

    __slots__ = (
        "arrived_s",
        "begun_s",
        "detokenize_s",
        "first_relayed_s",
        "first_s",
        "last_s",
        "parsed_s",
        "queued_s",
        "received_s",
        "sent_s",
        "tokenized_s",
    )

    def __init__(self) -> None:
        """Begin now."""
        self.arrived_s = time.perf_counter()
        self.parsed_s = self.tokenized_s = self.sent_s = self.received_s = math.nan
        self.begun_s = self.first_s = self.last_s = self.first_relayed_s = math.nan
        self.detokenize_s = self.queued_s = 0.0

    def stages(self, now_s: float) -> dict[str, float]:
        """Return the seconds of each stage; they sum to the time since arrival.

        Args:
            now_s: when the answer was handed to the network.

        Returns:
            By name of `STAGES`; stages not reached are absent.
        """
        times = {
            "parse": self.parsed_s - self.arrived_s,
            "tokenize": self.tokenized_s - self.parsed_s,
            "queue": self.queued_s,
            "send": self.received_s - self.tokenized_s - self.queued_s,
            "engine_queue": self.begun_s - self.received_s,
            "prefill": self.first_s - self.begun_s,
            "decode": self.last_s - self.first_s,
            "detokenize": self.detokenize_s,
            "relay": now_s - self.last_s - self.detokenize_s,
        }
        return {name: max(value, 0.0) for name, value in times.items() if value == value}

    def header(self, now_s: float) -> bytes:
        """Return the stages as `name=seconds` pairs separated by commas."""
        return ",".join(
            f"{name}={value:.6f}" for name, value in self.stages(now_s).items()
        ).encode()
