"""Series on regular grids: one set type, one reader, one sampler of windows."""

from steelyard.operate.series.prometheus import from_prometheus
from steelyard.operate.series.reading import read_series
from steelyard.operate.series.series_set import SeriesSet, joined
from steelyard.operate.series.windows import WindowSampler

__all__ = ["SeriesSet", "WindowSampler", "from_prometheus", "joined", "read_series"]
