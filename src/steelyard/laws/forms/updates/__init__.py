"""Updates to data in value-based reinforcement learning."""
