"""The fitting engine: declared laws, one batched minimizer, and fits with intervals."""
