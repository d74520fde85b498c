"""How many replicas a service should have: scalers, their replay on a demand, their real ends."""

from steelyard.operate.autoscale.bayesian import BayesianScaler
from steelyard.operate.autoscale.forecasting import (
    DemandForecast,
    DemandForecaster,
    GuardedDemand,
    VirtualDeadline,
)
from steelyard.operate.autoscale.hpa import ReactiveHPA, wanted_replicas
from steelyard.operate.autoscale.learning import AllowedMisses, CapacityPosterior, MissPrice
from steelyard.operate.autoscale.replay import ScalerRun, lead_steps, replay, replay_all
from steelyard.operate.autoscale.rules import (
    MovingWindowMax,
    Oracle,
    OracleQuantile,
    QuantileScaler,
)
from steelyard.operate.autoscale.scaler import (
    FixedReplicas,
    Scaler,
    ScalerPolicy,
    ServiceState,
    peak_samples,
)
from steelyard.operate.autoscale.vpa import DecayingHistogram, RecommenderVPA

__all__ = [
    "AllowedMisses",
    "BayesianScaler",
    "CapacityPosterior",
    "DecayingHistogram",
    "DemandForecast",
    "DemandForecaster",
    "FixedReplicas",
    "GuardedDemand",
    "MissPrice",
    "MovingWindowMax",
    "Oracle",
    "OracleQuantile",
    "QuantileScaler",
    "ReactiveHPA",
    "RecommenderVPA",
    "Scaler",
    "ScalerPolicy",
    "ScalerRun",
    "ServiceState",
    "VirtualDeadline",
    "lead_steps",
    "peak_samples",
    "replay",
    "replay_all",
    "wanted_replicas",
]
