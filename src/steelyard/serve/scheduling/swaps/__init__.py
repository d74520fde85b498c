"""Moving requests to the host and back: whom, when, and how long to wait."""
