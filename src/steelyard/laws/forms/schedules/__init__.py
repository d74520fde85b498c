"""Loss over a learning-rate schedule."""
