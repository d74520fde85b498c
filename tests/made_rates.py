"""Rates of an engine that nobody measured: every time follows from a line that tests can repeat."""

from steelyard.catalog import Calibration, MatmulPoint
from steelyard.catalog.engine_rates import EngineRates, LinearTime, PartRate, ProductTime

BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5625}
READ_BYTES_PER_S = {8e6: 100e9, 128e6: 25e9}
"""Rates of reads by the size of a set."""
PEAKS = {"fp32": 2e11, "bf16": 4e11, "int8": 8e11, "int4": 6e11}


def s_per_weight(kind, rows, set_bytes):
    """Return the larger of both bounds."""
    return max(BYTES[kind] / READ_BYTES_PER_S[set_bytes], 2 * rows / PEAKS[kind])


def made_rates(**changes):
    """Make rates of all types; parts other than products cost a microsecond per call."""
    products = tuple(
        ProductTime(
            weights=kind,
            rows=rows,
            inputs=inputs,
            set_bytes=size,
            s_per_weight=s_per_weight(kind, rows, size),
        )
        for kind in BYTES
        for rows in (1, 8, 64)
        for inputs in (512, 2048)
        for size in READ_BYTES_PER_S
    )
    call = PartRate(warm=LinearTime(1e-6), cold=LinearTime(2e-6))
    names = ("embedding", "norms", "rope", "activation", "sampling", "python")
    attention = PartRate(warm=LinearTime(0.0, 0.0, 1e-10), cold=LinearTime(0.0, 0.0, 2e-10))
    return EngineRates(
        **(
            {
                "products": products,
                "decode": dict.fromkeys(("fp32", "bf16", "int8"), attention),
                "prefill": dict.fromkeys(("fp32", "bf16", "int8"), attention),
                "parts": dict.fromkeys(names, call),
                "warm_bytes": 8e6,
                "cold_bytes": 128e6,
            }
            | changes
        )
    )


def made_calibration(engine=None):
    """Make a calibration of some machine."""
    return Calibration(
        description="a machine",
        num_threads=2,
        memory_bytes=8e9,
        matmul=(MatmulPoint(dtype="fp32", m=8, n=8, k=8, flops_per_s=5e10, spread=0.1),),
        stream_bytes_per_s=2e10,
        cache_bytes_per_s=8e10,
        gather_bytes_per_s=4e9,
        disk_read_bytes_per_s=0.0,
        disk_write_bytes_per_s=0.0,
        link_latency_s=1e-5,
        link_bytes_per_s=2e9,
        launch_s=2e-6,
        noise=0.05,
        engine=engine,
    )
