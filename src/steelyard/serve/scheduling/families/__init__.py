"""Requests of several sequences: outputs side by side, and beams."""
