"""What a run is made of: cells, the order they are taken in, and the run that takes them."""
