"""A decoder step in C++, compiled on this machine when it is first used."""
