"""Cold starts: which they are, and the policies that spare them."""
