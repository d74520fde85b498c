"""Messages between gateway and engine, in frames over a Unix socket.

The gateway is the server of the socket and speaks first: `Start` says what engine to make, and
`Ready` or `Failed` answers. From then on both sides speak when they have something to say. Messages
are arrays, not maps: one `Step` per engine step carries the tokens of all requests, and field names
would be most of its bytes.
"""

from typing import Any

import msgspec

from steelyard.serve.scheduling.params import SamplingParams

__all__ = [
    "Abort",
    "Add",
    "Drain",
    "Embed",
    "Embedded",
    "Failed",
    "GetStats",
    "Ready",
    "Start",
    "Stats",
    "Step",
    "ToEngine",
    "ToGateway",
    "Update",
]


class Start(msgspec.Struct, tag="start", array_like=True, frozen=True):
    """What engine to make; the first frame.

    Attributes:
        model: folder of the model.
        options: fields of `EngineOptions` as plain values, whole: what the engine's process knows
            of the command line is in here and nowhere else.
        spawned_s: when its process was started, on the machine's monotonic clock.
    """

    model: str
    options: dict[str, Any]
    spawned_s: float = 0.0


class Add(msgspec.Struct, tag="add", array_like=True, frozen=True):
    """Run a prompt.

    Attributes:
        key: number of the prompt in both directions; never used twice on one connection, so that
            news of a prompt that was aborted is not taken for those of another.
        prompt: token ids.
        params: sampling parameters.
        priority: smaller runs first under the priority policy.
        client: who pays for it, the owner of the API key.
        user: whom of the client's users it is for, as the request says.
        expected_output: output tokens the gateway expects.
        sent_s: when the gateway sent it, on the machine's monotonic clock.
    """

    key: int
    prompt: list[int]
    params: SamplingParams
    priority: int
    client: str
    user: str
    expected_output: int
    sent_s: float


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """Drop a prompt's sequences; nothing happens when they have ended."""

    key: int


class Embed(msgspec.Struct, tag="embed", array_like=True, frozen=True):
    """Compute one vector for each prompt."""

    key: int
    prompts: list[list[int]]


class GetStats(msgspec.Struct, tag="get-stats", array_like=True, frozen=True):
    """Ask for the counters."""

    key: int


class Drain(msgspec.Struct, tag="drain", array_like=True, frozen=True):
    """Finish what is in flight, then end the process."""


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The engine takes requests.

    Attributes:
        vocab_size: token ids lie below it.
        max_model_len: longest prompt and output together.
        slots: tokens the key/value pool holds.
        max_num_seqs: most sequences that run at once.
        embeds: whether `Embed` is answered.
        stages: seconds of its start by stage, in order.
        kernel: name of what runs a step.
        kernel_note: why it is not a faster one; empty when there is none.
        weights: number type in which its linear layers are computed.
        pool_bytes: bytes of the key/value pool.
        kv_dtype: number type of keys and values.
        weights_note: how that type was chosen; empty where it was given.
        guesses: what guesses tokens, "ngram" or "model"; "off" for nothing.
    """

    vocab_size: int
    max_model_len: int
    slots: int
    max_num_seqs: int
    embeds: bool
    stages: dict[str, float] = {}
    kernel: str = ""
    kernel_note: str = ""
    weights: str = ""
    pool_bytes: int = 0
    kv_dtype: str = ""
    weights_note: str = ""
    guesses: str = "off"


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The engine could not be made, or a step failed; the process ends.

    Attributes:
        message: what went wrong.
        hint: what to do about it.
        exit_code: what the command line should exit with.
    """

    message: str
    hint: str
    exit_code: int


class Update(msgspec.Struct, array_like=True, frozen=True):
    """What one sequence got in a step.

    Attributes:
        key: number of the prompt.
        index: number of the sequence among those of the prompt.
        tokens: new token ids; the stop token that ended it is not among them.
        finish_reason: "stop", "length", "abort" or "refused" when it ended, else empty.
        logprobs: one natural logarithm per token, or None.
        tops: (token, natural logarithm) pairs, most likely first, for each token, or None.
        stamps: when the frame was received, when the first step began and when its first token
            came; with the first token only.
        message: why it was refused.
    """

    key: int
    index: int
    tokens: list[int]
    finish_reason: str = ""
    logprobs: list[float] | None = None
    tops: list[list[tuple[int, float]]] | None = None
    stamps: tuple[float, float, float] | None = None
    message: str = ""


class Step(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """All tokens of all sequences of one step.

    Attributes:
        updates: one per sequence with news.
        ended_s: when the step's tokens were known, on the machine's monotonic clock.
    """

    updates: list[Update]
    ended_s: float


class Embedded(msgspec.Struct, tag="embedded", array_like=True, frozen=True):
    """Answer to `Embed`.

    Attributes:
        key: number of the question.
        width: length of one vector.
        values: float32 little-endian, [prompts, width] in row order; empty when refused.
        message: why it was refused.
    """

    key: int
    width: int
    values: bytes
    message: str = ""


class Stats(msgspec.Struct, tag="stats", array_like=True, frozen=True):
    """Answer to `GetStats`: the engine's counters by name."""

    key: int
    values: dict[str, float]


# Which side may send what. Each side decodes its union only, so that a message of the wrong
# direction ends the connection instead of doing something.
ToEngine = Start | Add | Abort | Embed | GetStats | Drain
ToGateway = Ready | Failed | Step | Embedded | Stats
