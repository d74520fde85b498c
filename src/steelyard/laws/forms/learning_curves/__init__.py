"""Error over samples: regions, the best of all sizes, and smooth transitions."""
