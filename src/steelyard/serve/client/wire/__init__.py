"""What goes over the wire: addresses, connections, server-sent events, streamed requests."""
