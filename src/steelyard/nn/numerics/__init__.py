"""Number formats: plain reference codecs for weights and activations, with stated error bounds.

They say what a format means, bit by bit; engines have their own faster code, tested against these.
"""
