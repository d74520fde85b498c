"""What mixes tokens besides plain causal attention."""
