"""Facts: accelerators, clusters, sites, storage, data centers, architectures, and what was measured here.

`calibrate` stands in `steelyard.catalog.calibrate`, because it needs torch.
"""

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.calibration import Calibration, MatmulPoint
from steelyard.catalog.datacenter import DataCenterSpec, RackGroup
from steelyard.catalog.hardware import Accelerator, Cluster, Level, Site
from steelyard.catalog.huggingface import from_huggingface
from steelyard.catalog.huggingface_export import to_huggingface
from steelyard.catalog.parameters import ParameterCount, count_parameters
from steelyard.catalog.records import (
    accelerator,
    architecture_by_name,
    cluster,
    datacenter,
    names,
    record,
    site,
    site_of,
    storage_tier,
)
from steelyard.catalog.storage import StorageTier
from steelyard.catalog.stored import load_calibration, store_calibration

__all__ = [
    "Accelerator",
    "Architecture",
    "Calibration",
    "Cluster",
    "DataCenterSpec",
    "Level",
    "MatmulPoint",
    "ParameterCount",
    "RackGroup",
    "Site",
    "StorageTier",
    "accelerator",
    "architecture_by_name",
    "cluster",
    "count_parameters",
    "datacenter",
    "from_huggingface",
    "load_calibration",
    "names",
    "record",
    "site",
    "site_of",
    "storage_tier",
    "store_calibration",
    "to_huggingface",
]
