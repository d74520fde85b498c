"""Speculative decoding: who guesses tokens, how many are worth checking, what came of them."""
