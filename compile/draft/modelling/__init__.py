"""What transformers' modelling code states of an architecture: it is parsed, and never run."""
