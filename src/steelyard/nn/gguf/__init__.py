"""GGUF files: one file that holds a model's weights, shape, tokenizer and chat template.

`steelyard.nn.checkpoint.load` opens them as it opens folders. `header` and `vocabulary` need no
torch.
"""
