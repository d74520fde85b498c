"""Graphs: edge lists of any size sorted into mapped arrays, and generators."""

from steelyard.data.graph.building import build_graph
from steelyard.data.graph.csr import CSRGraph
from steelyard.data.graph.edges import ArrayEdges, EdgeSource, TableEdges
from steelyard.data.graph.generators import PlantedFans, planted_graph, rmat_edges

__all__ = [
    "ArrayEdges",
    "CSRGraph",
    "EdgeSource",
    "PlantedFans",
    "TableEdges",
    "build_graph",
    "planted_graph",
    "rmat_edges",
]
