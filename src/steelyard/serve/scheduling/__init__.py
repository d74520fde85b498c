"""Requests, and the policies that decide which of them run in the next step."""
