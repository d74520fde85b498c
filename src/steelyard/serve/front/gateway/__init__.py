"""The gateway's process: who may ask what, when, and how answers go back."""
