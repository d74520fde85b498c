"""Models of learning that can be solved exactly, and tables of runs whose truth is known."""
