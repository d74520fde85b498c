"""The engine's process: its wire to the gateway, its loop, and who starts it again."""
