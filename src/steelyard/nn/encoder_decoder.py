"""An encoder and a decoder that reads its results, built from one architecture."""

from pathlib import Path

import torch
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.files import read_json
from steelyard.nn.hashes import check_hashes
from steelyard.nn.initial.fill import fill
from steelyard.nn.mapped import Weights
from steelyard.nn.mixers.sequences import same_segment
from steelyard.nn.own_folder import INDEX, WEIGHTS, fill_from, own_architecture
from steelyard.nn.transformer import Transformer

__all__ = ["EncoderDecoder", "build", "load"]


def build(arch: Architecture, *, seed: int = 0) -> "EncoderDecoder":
    """Build an encoder-decoder with freshly drawn weights, in float32 on the CPU.

    Args:
        arch: architecture of kind "encoder-decoder", with `num_layers` each.
        seed: seed of the draws.

    Returns:
        The model, in training mode.

    Raises:
        ConfigError: the architecture is of another kind, or has a trait this model does not have.
        CatalogError: its traits contradict each other.
    """
    model = EncoderDecoder(arch)
    fill(model, arch, torch.Generator().manual_seed(seed))
    return model


def load(directory: Path | str, *, dtype: torch.dtype | None = torch.float32) -> "EncoderDecoder":
    """Load what `nn.checkpoint.save` wrote of an encoder-decoder.

    Args:
        directory: the folder.
        dtype: type of all parameters; None for that in which each is stored.

    Returns:
        The model, in evaluation mode.

    Raises:
        DataError: a file or tensor is missing, malformed or left over, or a hash differs.
        ConfigError: the folder holds another kind of model.
    """
    directory = Path(directory)
    arch = own_architecture(read_json(directory / "config.json"), directory)
    check_hashes(directory)
    model = EncoderDecoder(arch)
    fill_from(model, Weights(directory, WEIGHTS, INDEX), directory, dtype)
    return model.eval()


class EncoderDecoder(nn.Module):
    """Two stacks with one table of tokens.

    Attributes:
        architecture: the record it was built from.
        encoder: attends both ways.
        decoder: attends causally, and in each layer all of the encoder's results.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.1; Raffel et al. 2020 (arXiv
        1910.10683), section 2.1.
    """

    def __init__(self, arch: Architecture) -> None:
        """Lay out the parameters in float32 on the CPU, not yet filled.

        Args:
            arch: architecture of kind "encoder-decoder".

        Raises:
            ConfigError: it is of another kind, or has a trait this model does not have.
            CatalogError: its traits contradict each other.
        """
        super().__init__()
        if arch.kind != "encoder-decoder":
            raise ConfigError(
                f"{arch.name} is of kind {arch.kind!r}, not 'encoder-decoder'",
                hint="build it with nn.transformer.build",
            )
        self.architecture = arch
        self.encoder = Transformer(arch, part="encoder")
        self.decoder = Transformer(arch, part="decoder")
        # The same modules, so that training moves one table and files can hold either.
        self.decoder.embedding = self.encoder.embedding
        self.decoder.position_embedding = self.encoder.position_embedding

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_segments: Tensor | None = None,
        target_segments: Tensor | None = None,
    ) -> Tensor:
        """Return logits of the token after each one of a target.

        Args:
            source: int64 [B, S], read as a whole; S at most `architecture.max_positions`.
            target: int64 [B, T], each token seeing those before it; T likewise.
            source_segments: integers [B, S], which example of its row each token belongs to, 0 for
                padding; tokens of other examples are not seen. None where a row is one example.
            target_segments: the same of targets [B, T]; given with those of the source.

        Returns:
            Logits [B, T, V].

        Raises:
            ConfigError: a sequence is longer than the positions the model knows, or it cannot
                attend in segments.
        """
        memory = self.encoder(source, segments=source_segments)
        if source_segments is None or target_segments is None:
            return self.decode(memory, target)
        seen = same_segment(target_segments, source_segments)
        return self.decoder(target, segments=target_segments, memory=memory, memory_seen=seen)

    def decode(self, memory: Tensor, target: Tensor) -> Tensor:
        """Return logits of targets whose sources are encoded already.

        Args:
            memory: [B, S, C] of `encoder`.
            target: int64 [B, T].

        Returns:
            Logits [B, T, V].

        Raises:
            ConfigError: the target is longer than the positions the model knows.
        """
        return self.decoder(target, memory=memory)
