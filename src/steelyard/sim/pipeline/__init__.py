"""Hardware pipelines of vector search in virtual time: queues, stages, several accelerators."""

from steelyard.sim.pipeline.scaleout import ScaleOut, latency_sampler
from steelyard.sim.pipeline.stages import PipelineRun, SearchPipeline, run_tandem
from steelyard.sim.pipeline.systolic import systolic_select

__all__ = [
    "PipelineRun",
    "ScaleOut",
    "SearchPipeline",
    "latency_sampler",
    "run_tandem",
    "systolic_select",
]
