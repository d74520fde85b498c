import pytest

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.calibration import Calibration, MatmulPoint
from steelyard.catalog.hardware import Accelerator, Site

GPT = {
    "norm": "layernorm",
    "position": "learned",
    "mlp": "gelu",
    "qkv_bias": True,
    "output_bias": True,
    "mlp_bias": True,
}


def _gpt(name: str, hidden: int, layers: int, heads: int, **changes: object) -> Architecture:
    shape = {
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": 50257,
    }
    return Architecture(
        name=name,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        **{**shape, **GPT, **changes},
    )  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def architectures() -> dict[str, Architecture]:
    found = [
        _gpt("gpt3", 12288, 96, 96),
        _gpt("gpt2-xl", 1600, 48, 25, max_positions=1024),
        _gpt(
            "bert-large",
            1024,
            24,
            16,
            kind="encoder",
            vocab_size=30522,
            max_positions=512,
            num_token_types=2,
            pooler=True,
        ),
        _gpt(
            "transformer-big",
            1024,
            6,
            16,
            kind="encoder-decoder",
            vocab_size=37000,
            mlp="relu",
            position="none",
        ),
        _gpt("opt-13b", 5120, 40, 40, mlp="relu"),
        _gpt("megatron-22b", 6144, 48, 64, vocab_size=51200),
        _gpt(
            "yi-34b",
            7168,
            60,
            56,
            num_kv_heads=8,
            intermediate_size=20480,
            vocab_size=64000,
            norm="rmsnorm",
            position="rope",
            mlp="swiglu",
            tied_embeddings=False,
            max_positions=200000,
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
        ),
        Architecture(
            name="tiny",
            hidden_size=64,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
            intermediate_size=128,
            vocab_size=256,
        ),
    ]
    return {arch.name: arch for arch in found}


@pytest.fixture(scope="session")
def a100() -> Accelerator:
    return Accelerator(
        name="A100-SXM4-80GB",
        vendor="NVIDIA",
        kind="gpu",
        year=2020,
        peak_flops_per_s={"bf16": 312e12},
        memory_bytes=80 * 2**30,
        memory_bytes_per_s=2.0e12,
        scale_up_bytes_per_s=300e9,
        host_link_bytes_per_s=20e9,
        tdp_w=400.0,
        price_usd_per_hour=5.12,
    )


@pytest.fixture(scope="session")
def site() -> Site:
    return Site(
        name="somewhere", country="Italy", pue=1.2, price_usd_per_kwh=0.1, carbon_g_per_kwh=300.0
    )


@pytest.fixture(scope="session")
def calibration() -> Calibration:
    sizes = ((64, 20e9), (256, 60e9), (1024, 90e9))
    points = tuple(
        MatmulPoint(dtype="fp32", m=size, n=size, k=size, flops_per_s=rate, spread=0.05)
        for size, rate in sizes
    )
    return Calibration(
        description="made up",
        num_threads=2,
        memory_bytes=16e9,
        matmul=points,
        stream_bytes_per_s=20e9,
        cache_bytes_per_s=80e9,
        gather_bytes_per_s=2e9,
        disk_read_bytes_per_s=0,
        disk_write_bytes_per_s=0,
        link_latency_s=1e-5,
        link_bytes_per_s=2e9,
        launch_s=5e-6,
        noise=0.05,
    )
