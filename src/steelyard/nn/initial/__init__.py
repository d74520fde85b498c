"""Initial weights, and the constants of norm schemes that they depend on."""
