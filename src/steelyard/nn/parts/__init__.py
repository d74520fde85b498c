"""Small parts that layers of every kind are made of."""
