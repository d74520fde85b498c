"""Tables of runs whose columns know their units and conventions."""
