"""`steelyard serve quantize`: a trained model in fewer bits, and what that costs in quality."""
