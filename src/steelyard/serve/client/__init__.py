"""The client side of serving.

A load generator for any OpenAI-compatible server, what it measures, and conversations.

Everything here needs the `[serve]` extra; the modules are imported one by one, so that nothing is
loaded before it is asked for.
"""
