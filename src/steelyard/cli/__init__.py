"""The command line: `steelyard <room> <verb>`; every file of this room holds one room's verbs."""
