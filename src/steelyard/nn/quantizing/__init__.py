"""Make stored weights of trained models: which codes lose least on given activations."""
