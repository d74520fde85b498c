"""Hugging Face folders of GPTQ, AWQ and compressed-tensors, whose weights are whole numbers.

`steelyard.nn.checkpoint.load` opens them as it opens others.
"""
