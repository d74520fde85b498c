"""Mixtures of experts: routers, sorted dispatch, and what a trainer adds to the loss."""
