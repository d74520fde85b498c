"""The tensor side of a step: kernels, the runner, sampling."""
