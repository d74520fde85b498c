"""Tiers below memory: stores of blocks, links, and who moves blocks between them."""
