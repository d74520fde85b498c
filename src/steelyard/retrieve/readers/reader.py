"""A language model that reads passages before a text, and how well it then predicts the text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from steelyard.errors import ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.retrieve.readers.windows import ReadingWindows

if TYPE_CHECKING:
    from steelyard.retrieve.datastore import Candidates

__all__ = ["PassageReader", "prompts"]


class PassageReader:
    """A decoder with its tokenizer, reading passages in front of what is known.

    Losses are kept by window and passages: stores of a study often return the same ones.

    Attributes:
        model: the decoder.
        tokenizer: its tokenizer.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, *, batch_size: int = 16) -> None:
        """Put a decoder behind its tokenizer.

        Args:
            model: a decoder.
            tokenizer: the one that it was trained with.
            batch_size: windows in one forward pass.

        Raises:
            ConfigError: the model is an encoder.
        """
        if model.part != "decoder":
            raise ConfigError("an encoder predicts no text", hint="give a decoder as the reader")
        self.model, self.tokenizer = model, tokenizer
        self._batch_size = batch_size
        self._known: dict[tuple[bytes, bytes], float] = {}
        self._tokens: dict[bytes, NDArray[np.float64]] = {}

    def losses(
        self, windows: ReadingWindows, found: "Candidates | None" = None
    ) -> NDArray[np.float64]:
        """Return how surprising each window's answer is.

        Args:
            windows: what is read.
            found: passages of each window, the best first, as `Candidates.top` returns; None for
                none.

        Returns:
            Mean nats per predicted token [W].

        Raises:
            ConfigError: not as many windows as queries, or windows longer than the model takes.
        """
        if found is not None and len(found) != len(windows):
            raise ConfigError(f"passages for {len(found)} windows of {len(windows)}")
        ids = np.full((len(windows), 0), -1) if found is None else found.ids
        keys = [
            (windows.known[row].tobytes() + windows.wanted[row].tobytes(), ids[row].tobytes())
            for row in range(len(windows))
        ]
        fresh = [row for row, key in enumerate(keys) if key not in self._known]
        for first in range(0, len(fresh), self._batch_size):
            part = fresh[first : first + self._batch_size]
            texts = [_texts(found, row) for row in part]
            for row, value in zip(part, self._measured(windows, part, texts), strict=True):
                self._known[keys[row]] = value
        return np.array([self._known[key] for key in keys])

    def token_losses(self, windows: ReadingWindows) -> NDArray[np.float64]:
        """Return how surprising each predicted token is, without a passage.

        Args:
            windows: what is read.

        Returns:
            Nats [W, A]; those of a window are kept for the next call.

        Raises:
            ConfigError: windows longer than the model takes.
        """
        keys = [
            windows.known[row].tobytes() + windows.wanted[row].tobytes()
            for row in range(len(windows))
        ]
        fresh = [row for row, key in enumerate(keys) if key not in self._tokens]
        for first in range(0, len(fresh), self._batch_size):
            part = fresh[first : first + self._batch_size]
            found = self._of_tokens(windows, part, [[] for _ in part])
            for row, values in zip(part, found, strict=True):
                self._tokens[keys[row]] = values
        return np.stack([self._tokens[key] for key in keys])

    def _measured(
        self, windows: ReadingWindows, rows: Sequence[int], texts: Sequence[Sequence[str]]
    ) -> list[float]:
        """Return the losses of a batch."""
        return [float(values.mean()) for values in self._of_tokens(windows, rows, texts)]

    def _of_tokens(
        self, windows: ReadingWindows, rows: Sequence[int], texts: Sequence[Sequence[str]]
    ) -> list[NDArray[np.float64]]:
        """Return the losses of each token of a batch [A]."""
        most = self.model.architecture.max_positions
        tokens, begins = prompts(windows, rows, texts, self.tokenizer, most)
        self.model.eval()
        with torch.inference_mode():
            losses = self.model(tokens[:, :-1], targets=tokens[:, 1:])
        wanted = windows.wanted.shape[1]
        return [
            losses[place, begin - 1 : begin - 1 + wanted].double().numpy()
            for place, begin in enumerate(begins)
        ]


def prompts(
    windows: ReadingWindows,
    rows: Sequence[int],
    texts: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    most: int,
) -> tuple[torch.Tensor, list[int]]:
    """Return passages, what is known and what is wanted as rows of tokens.

    The best passage stands nearest to what is known. Passages are cut, all to the same length,
    where they would not fit; the window never is.

    Args:
        windows: windows.
        rows: places of those in the batch.
        texts: passages of each, the best first.
        tokenizer: the reader's.
        most: tokens that the reader takes.

    Returns:
        Tokens int64 [B, T], with zeros behind shorter rows, and where the wanted part of each row
        begins.

    Raises:
        ConfigError: a window alone is too long.

    Source: Shao et al. 2024 (arXiv 2407.12854), prompt: passages in reverse order.
    """
    room = most + 1 - windows.known.shape[1] - windows.wanted.shape[1]
    if room < 0:
        raise ConfigError(
            f"windows of {most + 1 - room} tokens for a reader of {most}, of whose row the last "
            "token is only predicted",
            hint="cut shorter windows",
        )
    built, begins = [], []
    for row, passages in zip(rows, texts, strict=True):
        share = room // len(passages) if passages else 0
        ids: list[int] = []
        for passage in reversed(passages):
            ids += tokenizer.encode(passage, add_special_tokens=False).ids[:share]
        begins.append(len(ids) + windows.known.shape[1])
        built.append([*ids, *windows.known[row].tolist(), *windows.wanted[row].tolist()])
    tokens = torch.zeros(len(built), max(map(len, built)), dtype=torch.int64)
    for place, ids in enumerate(built):
        tokens[place, : len(ids)] = torch.tensor(ids)
    return tokens, begins


def _texts(found: "Candidates | None", row: int) -> list[str]:
    """Return the passages of a window, the best first."""
    if found is None:
        return []
    return [found.store.text(number) for number in found.ids[row].tolist() if number >= 0]
