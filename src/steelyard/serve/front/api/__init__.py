"""The OpenAI-compatible surface: bodies, answers, errors and their schema."""
