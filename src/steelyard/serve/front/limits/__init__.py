"""Who may ask, and how much may be in flight."""
