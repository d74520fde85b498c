"""Ways in which positions enter besides rotation and learned tables."""
