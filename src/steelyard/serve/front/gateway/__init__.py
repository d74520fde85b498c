"""The gateway's process: HTTP in, frames to the engine, answers out."""
