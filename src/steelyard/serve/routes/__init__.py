"""Routing in fleets that mix instances for both phases with instances for one."""
