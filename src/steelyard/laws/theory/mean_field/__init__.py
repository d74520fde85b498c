"""The mean-field theory of random-feature training in the frequency domain."""
