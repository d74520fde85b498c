"""Forecasts of runs beyond the fitted ones, from several forms at once."""
