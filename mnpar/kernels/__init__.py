"""Fast computations on arrays, without Variables: arrays in, arrays out."""
