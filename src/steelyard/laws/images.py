"""Image models and image-text pairs: errors, what binds, and envelopes over compute."""

from steelyard.laws.decisions.envelope import fit_envelope
from steelyard.laws.forms.contrastive import bottleneck, contrastive, contrastive_gmacs

__all__ = ["bottleneck", "contrastive", "contrastive_gmacs", "fit_envelope"]
