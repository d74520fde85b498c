"""What a law is fitted for: which form to trust, how to split a budget, which run to do next."""
