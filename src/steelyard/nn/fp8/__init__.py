"""Training and inference with matrix products of eight-bit floats."""
