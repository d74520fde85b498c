"""Which pretrained model to fine-tune, from a fraction of the data."""
