"""Messages between the processes of a run: links and their emulation, and all-reduce over them."""
