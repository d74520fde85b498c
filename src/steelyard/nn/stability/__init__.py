"""Where norms stand, how initial weights follow from it, and whether it keeps training stable."""
