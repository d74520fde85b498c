"""Weights and activations spread over processes, by rules from named axes to those of a mesh."""
