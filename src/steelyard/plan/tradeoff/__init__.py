"""Long contexts: what a technique does to context, accuracy and performance at equal resources.

`techniques` is what is known, `measure` places configurations of one model, `table` says which
differences lie outside the noise, and `recommend` ranks configurations for goals.
"""
