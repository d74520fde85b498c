import pytest


@pytest.fixture(scope="session")
def tiny():
    """A decoder of bytes with random weights, made for 64 positions."""
    import torch

    from steelyard.catalog.architecture import Architecture
    from steelyard.nn.transformer import build

    torch.set_num_threads(1)
    arch = Architecture(
        name="tiny",
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=48,
        vocab_size=256,
        max_positions=64,
    )
    return build(arch, seed=1).eval()
