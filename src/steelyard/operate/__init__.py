"""Operate: watch series, forecast them with intervals, decide, and show what the decision cost."""

__all__: list[str] = []
