"""Small measurements of one machine, one resource per module.

`steelyard.catalog.calibrate` runs them all.
"""
