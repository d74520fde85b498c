"""Towers: a language model whose text ends as one unit vector, alone or in pairs."""

from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from steelyard.errors import ConfigError, DataError
from steelyard.files import read_json, write_json
from steelyard.nn import checkpoint
from steelyard.nn.mapped import write_tensors
from steelyard.nn.transformer import Transformer

__all__ = ["Pooling", "Tower", "TowerPair", "load_tower", "save_tower"]

Pooling = Literal["last", "mean", "first"]
_ABOUT, _PROJECTION = "tower.json", "projection.safetensors"


class Tower(nn.Module):
    """A language model, what it takes of a text's states, and a projection.

    Attributes:
        model: the language model.
        pooling: "last" takes the state of the last token, "first" of the first, "mean" their mean.
        projection: linear map to the vector's numbers [D, C].

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766): unit vectors of the last token.
    """

    def __init__(
        self, model: Transformer, dim: int, *, pooling: Pooling = "last", seed: int = 0
    ) -> None:
        """Put a drawn projection behind a model.

        Args:
            model: a decoder or an encoder.
            dim: numbers D in a vector.
            pooling: "last", "mean" or "first".
            seed: seed of the projection.

        Raises:
            ConfigError: a vector without numbers, an unknown pooling, or the first token of a
                decoder, which has seen no other.
        """
        super().__init__()
        if dim < 1 or pooling not in get_args(Pooling):
            raise ConfigError(
                f"a tower of {dim} numbers by pooling {pooling!r}",
                hint=f"give 1 number or more, and one of {', '.join(get_args(Pooling))}",
            )
        if pooling == "first" and model.part == "decoder":
            raise ConfigError(
                "the first token of a decoder has seen no other", hint="take 'last' or 'mean'"
            )
        self.model, self.pooling = model, pooling
        width = model.architecture.hidden_size
        drawn = torch.randn(dim, width, generator=torch.Generator().manual_seed(seed))
        self.projection = nn.Parameter(drawn / width**0.5)

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self.projection.shape[0]

    def project_to(self, dim: int, *, seed: int = 0) -> None:
        """Put a drawn map to another number of numbers behind the projection, and fold both.

        Two linear maps behind each other are one, so that a tower with other vectors costs no
        more. The map keeps lengths where `dim` is larger, and is trained with the tower.

        Args:
            dim: numbers D in a vector from now on.
            seed: seed of the map.

        Raises:
            ConfigError: a vector without numbers.
        """
        if dim < 1:
            raise ConfigError(f"a tower of {dim} numbers", hint="give 1 number or more")
        drawn = torch.randn(
            max(dim, self.dim), min(dim, self.dim), generator=torch.Generator().manual_seed(seed)
        )
        basis = torch.linalg.qr(drawn)[0]
        carried = basis if dim > self.dim else basis.T
        device = self.projection.device
        folded = carried.to(device) @ self.projection.detach().float()
        self.projection = nn.Parameter(folded.to(self.projection.dtype))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return unit vectors of texts.

        Args:
            tokens: int64 [B, T]; what stands behind a text's length is not looked at.
            lengths: tokens of each text, int64 [B], 1 to T.

        Returns:
            [B, D].
        """
        inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        states = self._states(tokens, inside)
        if self.pooling == "mean":
            weights = inside.to(states.dtype) / lengths[:, None]
            pooled = (states * weights[..., None]).sum(dim=1)
        else:
            places = lengths - 1 if self.pooling == "last" else torch.zeros_like(lengths)
            pooled = states[torch.arange(len(tokens), device=tokens.device), places]
        # Outside of a half-precision context: scores are told apart by less than its rounding.
        with torch.autocast(tokens.device.type, enabled=False):
            return F.normalize(pooled.float() @ self.projection.float().T, dim=-1)

    def _states(self, tokens: Tensor, inside: Tensor) -> Tensor:
        """Return the last hidden states [B, T, C]."""
        if self.model.part == "encoder":
            # Padding is a segment of its own: no token of the text attends it.
            return self.model(tokens, segments=inside.long())
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.model.run(tokens, positions, self.model.attend)


class TowerPair(nn.Module):
    """A tower for queries and one for documents; both may be the same.

    Attributes:
        queries: tower of queries.
        documents: tower of documents.
    """

    def __init__(self, queries: Tower, documents: Tower) -> None:
        """Take two towers of one width.

        Args:
            queries: tower of queries.
            documents: tower of documents.

        Raises:
            ConfigError: their vectors have different numbers.
        """
        super().__init__()
        if queries.dim != documents.dim:
            raise ConfigError(
                f"queries have {queries.dim} numbers, documents {documents.dim}",
                hint="give both towers the same dim",
            )
        self.queries, self.documents = queries, documents


def save_tower(tower: Tower, folder: Path) -> None:
    """Write a tower to a folder, beside its model.

    Args:
        tower: the tower.
        folder: made if missing; an earlier tower there is replaced.

    Raises:
        CapacityError: the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The description comes last: a folder without it is no tower.
    (folder / _ABOUT).unlink(missing_ok=True)
    checkpoint.save(tower.model, folder / "model")
    write_tensors(folder / _PROJECTION, {"projection": tower.projection.detach().float()})
    write_json(folder / _ABOUT, {"dim": tower.dim, "pooling": tower.pooling})


def load_tower(folder: Path) -> Tower:
    """Read a tower.

    Args:
        folder: what `save_tower` wrote.

    Returns:
        The tower, in evaluation mode.

    Raises:
        DataError: the folder holds no whole tower.
    """
    if not (folder / _ABOUT).is_file():
        raise DataError(f"{folder} holds no tower", hint="write one by `save_tower`")
    about = read_json(folder / _ABOUT)
    model = checkpoint.load(folder / "model")
    tower = Tower(model, int(about["dim"]), pooling=about["pooling"])
    stored = load_file(folder / _PROJECTION)["projection"]
    if stored.shape != tower.projection.shape:
        raise DataError(
            f"{folder / _PROJECTION} is {list(stored.shape)}, "
            f"{list(tower.projection.shape)} is expected",
            hint="write the tower again",
        )
    with torch.no_grad():
        tower.projection.copy_(stored)
    return tower.eval()
