"""Models in PyTorch.

`steelyard.nn.transformer` builds a decoder from a catalog architecture; `steelyard.nn.checkpoint`
reads and writes Hugging Face folders. Nothing is imported here, because both need torch.
"""
