"""Charts of laws and decisions, and the report of a fit."""
